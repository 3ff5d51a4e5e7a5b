"""Jensen–Shannon divergence of the term distributions of two texts (P1, table 6).

P1 follows Ruder & Plank 2017, whose code has details that neither paper states: words are lower-cased, the vocabulary
is the 10 000 most frequent words of all texts together, and logarithms are natural, so that the maximum is
ln 2 = 0.693. (That code adds KL(P‖M) twice where KL(P‖M) and KL(Q‖M) belong; here it is the divergence itself.)
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
