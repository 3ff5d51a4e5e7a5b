"""Simulated finals for `statistics_simulation`: predictions of several modes' runs on one set of examples.

A logistic model decides whether a run is right about an example (a class, or a slot of a sentence that holds a span or
none): logit P(right) = level of the mode + seed + difficulty of the example + the mode's own liking of the example. The
remaining coin toss is the interaction of seed and example. In a regression task, a score is the gold score plus noise
with the same parts. Runs share only the examples, so the true Δ of two modes of the same level is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meltpoint.sweeps.ledger.predictions import ScoredExamples
from meltpoint.tasks.core.metrics import Floats

DIFFICULTY, LIKING = 2.0, 1.0
"""Standard deviations in logits: of an example for all modes, and for one mode. The coin toss's is π / √3 = 1.8."""
SHARES = (0.5, 0.25, 0.25)
"""Shares of the noise variance in a regression score: the example's, the mode's on the example, the run's."""
SLOTS = 3
"""Slots per sentence, three words each; a slot holds one span of one of two types, or none."""
POSITIVE = 0.35
"""Share of the second class, below one half because F1 and Matthews' correlation are for unequal classes."""


@dataclass(frozen=True)
class Finals:
    """The design of simulated finals.

    Attributes:
        metric: decides the kind of task.
        examples: number of examples in the split; of sentences for spans.
        seeds: number of runs of each mode.
        levels: one per mode: the share of right answers, or the correlation.
        same_mode: True if all modes are the same one with different seeds, so that no example suits one better.
        seed_spread: the standard deviation of a seed, in logits; for regression, of the logarithm of the noise. At a
            level of 0.85, 0.1 is about 0.8 points.
    """

    metric: str
    examples: int
    seeds: int
    levels: tuple[float, ...]
    same_mode: bool = False
    seed_spread: float = 0.1

    def draw(self, draw: np.random.Generator) -> list[list[ScoredExamples]]:
        """The runs of each mode."""
        return KINDS[self.metric](self, draw)


def _liking(finals: Finals, draw: np.random.Generator, count: int) -> Floats:
    """Each mode's liking of each example, (modes, 1, examples)."""
    own = draw.normal(size=(1 if finals.same_mode else len(finals.levels), 1, count))
    return np.broadcast_to(own, (len(finals.levels), 1, count))


def _right(finals: Finals, draw: np.random.Generator, count: int) -> NDArray[np.bool_]:
    """Right answers, (modes, seeds, examples)."""
    levels = np.array([intercept(level) for level in finals.levels])[:, None, None]
    seeds = draw.normal(scale=finals.seed_spread, size=(len(finals.levels), finals.seeds, 1))
    difficulty = draw.normal(scale=DIFFICULTY, size=count)
    logits = levels + seeds + difficulty + LIKING * _liking(finals, draw, count)
    right: NDArray[np.bool_] = draw.logistic(size=logits.shape) < logits
    return right


@lru_cache
def intercept(level: float) -> float:
    """The logit of a mode whose share of right answers over all examples is `level`."""
    from scipy.optimize import brentq
    from scipy.special import expit

    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    spread = np.hypot(DIFFICULTY, LIKING)

    def excess(value: float) -> float:
        return float(np.average(expit(value + spread * nodes), weights=weights)) - level

    return float(brentq(excess, -30, 30))


def _classes(finals: Finals, draw: np.random.Generator) -> list[list[ScoredExamples]]:
    gold = (draw.random(finals.examples) < POSITIVE).astype(np.int32)
    lengths = np.ones(finals.examples, dtype=np.int64)
    right = _right(finals, draw, finals.examples)
    return [
        [
            ScoredExamples("pair_classification", ("no", "yes"), gold, np.where(run, gold, 1 - gold), lengths)
            for run in mode
        ]
        for mode in right
    ]


TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
SLOT_TAGS = np.array([[4, 4, 4], [0, 2, 4], [1, 3, 4]], dtype=np.int32)
"""The three words of a slot: no span, a place, a person."""


def _sentences(finals: Finals, draw: np.random.Generator) -> list[list[ScoredExamples]]:
    slots = finals.examples * SLOTS
    gold = draw.integers(0, 3, slots)
    lengths = np.full(finals.examples, 3 * SLOTS, dtype=np.int64)
    right = _right(finals, draw, slots)
    wrong = (gold + draw.integers(1, 3, right.shape)) % 3
    found = np.where(right, gold, wrong)
    tags = SLOT_TAGS[gold].ravel()
    return [
        [ScoredExamples("sequence_labelling", TAGS, tags, SLOT_TAGS[run].ravel(), lengths) for run in mode]
        for mode in found
    ]


def _scores(finals: Finals, draw: np.random.Generator) -> list[list[ScoredExamples]]:
    count = finals.examples
    gold = draw.normal(size=count)
    of_example, of_mode, of_run = np.sqrt(SHARES)
    scale = np.array([np.sqrt(1 / level**2 - 1) for level in finals.levels])[:, None, None]
    seeds = np.exp(draw.normal(scale=finals.seed_spread, size=(len(finals.levels), finals.seeds, 1)))
    noise = of_example * draw.normal(size=count) + of_mode * _liking(finals, draw, count)
    noise = noise + of_run * draw.normal(size=(len(finals.levels), finals.seeds, count))
    lengths = np.ones(count, dtype=np.int64)
    return [
        [ScoredExamples("pair_regression", (), gold, run, lengths) for run in mode]
        for mode in gold + scale * seeds * noise
    ]


KINDS: Mapping[str, Callable[[Finals, np.random.Generator], list[list[ScoredExamples]]]] = {
    "accuracy": _classes,
    "f1": _classes,
    "matthews": _classes,
    "span_f1": _sentences,
    "pearson": _scores,
    "spearman": _scores,
}
"""Metric → its generator."""
