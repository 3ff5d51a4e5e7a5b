"""Agreement of predictions, and divergence of distributions of words.

P1 follows Ruder & Plank 2017, whose code has details that neither paper states: words are lower-cased, the vocabulary
is the 10 000 most frequent words of all texts together, and logarithms are natural, so that the maximum is
ln 2 = 0.693. (That code adds KL(P‖M) twice where KL(P‖M) and KL(Q‖M) belong; here it is the divergence itself.)
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meltpoint.reports.statistics.comparison import ALPHA

MOST_TASKS = 200
"""Where no number of tasks up to this one would do, none is named."""


@dataclass(frozen=True)
class TaskAgreement:
    """The differences of several tasks, taken as a sample of tasks.

    Attributes:
        deltas: one per task, fractions; at least one.
    """

    deltas: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over tasks."""
        return math.fsum(self.deltas) / len(self.deltas)

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the mean over tasks; None for one task."""
        from scipy.stats import sem, t  # takes a second to import

        if len(self.deltas) < 2:
            return None
        error = float(sem(self.deltas))
        if error == 0:
            return self.mean, self.mean
        low, high = t.interval(1 - ALPHA, len(self.deltas) - 1, loc=self.mean, scale=error)
        return float(low), float(high)

    @property
    def above(self) -> int:
        """The number of tasks whose difference is above 0."""
        return sum(delta > 0 for delta in self.deltas)

    @property
    def below(self) -> int:
        """The number of tasks whose difference is below 0."""
        return sum(delta < 0 for delta in self.deltas)

    @property
    def agreeing(self) -> int:
        """The number of tasks on the side that most are on."""
        return max(self.above, self.below)

    @property
    def p_sign(self) -> float:
        """The exact two-sided sign test over the tasks with a difference; 1 if there are none."""
        return _sign_test(self.above, self.above + self.below)

    @property
    def needed_tasks(self) -> int | None:
        """The number of tasks with which a sign test would be below `ALPHA` if as many in a hundred agreed."""
        share = self.agreeing / len(self.deltas)
        if share <= 0.5:
            return None
        sizes = range(len(self.deltas), MOST_TASKS + 1)
        return next((size for size in sizes if _sign_test(math.floor(share * size), size) < ALPHA), None)


def _sign_test(above: int, count: int) -> float:
    from scipy.stats import binomtest  # takes a second to import

    return float(binomtest(above, count).pvalue) if count else 1.0


VOCABULARY = 10_000
"""Ruder & Plank's `max_vocab_size`."""

_TERM = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def terms(text: str) -> list[str]:
    """Lower-cased words and punctuation marks; `don't` is one word."""
    return _TERM.findall(text.lower())


def count_terms(texts: Iterable[str]) -> Counter[str]:
    """Term → its number of occurrences."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(terms(text))
    return counts


def count_file(path: Path) -> Counter[str]:
    """Term counts of a reference corpus (UTF-8 text), read line by line, since it may be larger than memory.

    Raises:
        ValueError: the file is missing, is not UTF-8, or has no words.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            counts = count_terms(lines)
    except OSError as error:
        raise ValueError(f"--corpus {path} cannot be read ({error.strerror}); name a text file.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"--corpus {path} is not UTF-8 (byte {error.start} of a block); convert it.") from None
    if not counts:
        raise ValueError(f"--corpus {path} has no words in it; name a text file with the encoder's kind of text.")
    return counts


def vocabulary(counts: Iterable[Mapping[str, int]], size: int = VOCABULARY) -> list[str]:
    """The most frequent terms of all texts together, most frequent first; ties in alphabetical order."""
    total: Counter[str] = Counter()
    for one in counts:
        total.update(one)
    return sorted(total, key=lambda term: (-total[term], term))[:size]


def distribution(counts: Mapping[str, int], words: list[str]) -> NDArray[np.float64]:
    """The relative frequencies of the vocabulary's words in a text: (words,).

    Raises:
        ValueError: the text has none of the words.
    """
    frequencies = np.array([counts.get(word, 0) for word in words], dtype=np.float64)
    if not frequencies.any():
        raise ValueError("a text without any word of the vocabulary has no term distribution; give more of it.")
    shares: NDArray[np.float64] = frequencies / frequencies.sum()
    return shares


def jensen_shannon(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """½ KL(P‖M) + ½ KL(Q‖M), M = ½ (P + Q), in nats: 0 for equal distributions, ln 2 if no word is shared.

    Args:
        left, right: (words,) shares that sum to 1.
    """
    middle = (left + right) / 2
    return float(_divergence(left, middle) + _divergence(right, middle)) / 2


def _divergence(shares: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """KL(P‖M), for M > 0 wherever P > 0."""
    positive = shares > 0
    return float(shares[positive] @ np.log(shares[positive] / others[positive]))
