"""Resamples of examples, and scores of resamples by metrics that rank.

If examples come in groups (documents, authors), whole groups are drawn: the cluster bootstrap (Davison & Hinkley 1997,
section 3.8). Examples of a group may depend on each other; groups do not. Metrics that rank follow from the counts in
the order of the values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meltpoint.sweeps.ledger.predictions import ScoredExamples
from meltpoint.tasks.core.metrics import Floats

Groups = NDArray[np.int64] | None

CHUNK = 2**20
"""Counts in memory at a time: 8 MB."""
KEPT_CHUNKS = 16
"""Chunks of a task that are kept between its cells: 4 000 resamples of 2 000 examples are 8 chunks."""


def resampled(score: Scorer, examples: int, resamples: int, name: str, groups: Groups = None) -> Floats:
    """The scores of bootstrap resamples.

    Args:
        score: counts (resamples, examples) → scores (resamples, runs).
        examples: examples of the split.
        name: of the split; it seeds the draws, with the sizes.
        groups: the index of each example's group, (examples,); None if each example is drawn by itself.

    Returns:
        (resamples, runs).
    """
    return np.concatenate([score(counts) for counts in counts_of(examples, resamples, name, groups)])


def counts_of(examples: int, resamples: int, name: str, groups: Groups = None) -> Iterator[Floats]:
    """Chunks of counts, (some resamples, examples): how often each example was drawn.

    Each row sums to `examples`; with groups, the counts of one example of each group sum to the number of groups.
    """
    rows = max(1, CHUNK // examples)
    units = units_of(examples, groups)
    seed = int.from_bytes(hashlib.sha256(f"{name} {units}".encode()).digest()[:8], "big")
    for number, start in enumerate(range(0, resamples, rows)):
        counts = _chunk(units, min(rows, resamples - start), seed, number)
        yield counts if groups is None else counts[:, groups]


def units_of(examples: int, groups: Groups) -> int:
    """The number of independent units: groups, or examples if there are no groups."""
    return examples if groups is None else int(groups.max()) + 1


@lru_cache(maxsize=KEPT_CHUNKS)
def _chunk(units: int, rows: int, seed: int, number: int) -> Floats:
    drawn = np.random.default_rng([seed, number]).integers(units, size=(rows, units))
    places = drawn + units * np.arange(rows)[:, None]
    counts = np.bincount(places.ravel(), minlength=rows * units).reshape(rows, units).astype(np.float64)
    counts.flags.writeable = False  # cached, and returned more than once
    return counts


Scorer = Callable[[Floats], Floats]
"""Counts (resamples, examples) → scores (resamples, runs)."""


Runs = Sequence[ScoredExamples]


def ranker(values: NDArray[np.generic]) -> Scorer:
    """Counts → ranks in each resample less their mean, (resamples, examples); ties have the mean of their ranks."""
    distinct, places = np.unique(values, return_inverse=True)
    order = np.argsort(places, kind="stable")
    starts = np.concatenate([[0], np.flatnonzero(np.diff(places[order])) + 1])

    def ranks(counts: Floats) -> Floats:
        tied = counts[:, order]
        if len(distinct) < len(values):
            tied = np.add.reduceat(tied, starts, axis=1)  # (resamples, distinct values)
        found = np.cumsum(tied, axis=1)
        found -= tied / 2
        found -= counts.sum(axis=1, keepdims=True) / 2
        return found[:, places]

    return ranks


def roc_auc(runs: Runs) -> Scorer:
    """The area under the ROC curve from the ranks of the positives (Mann & Whitney 1947)."""
    found = [[(ranker(scores), positive) for scores, positive in _columns(run)] for run in runs]

    def area(counts: Floats, ranks: Scorer, positive: Floats) -> tuple[Floats, Floats]:
        size = counts.sum(axis=1)
        ours = counts @ positive
        others = size - ours
        # `ranks` are less the mean rank, (size + 1) / 2.
        above = (counts * ranks(counts)) @ positive + ours * (size + 1) / 2 - ours * (ours + 1) / 2
        has_curve = (ours > 0) & (others > 0)
        return np.divide(above, ours * others, out=np.zeros_like(above), where=has_curve), has_curve.astype(np.float64)

    def score(counts: Floats) -> Floats:
        columns = []
        for labels in found:
            areas, known = zip(*(area(counts, ranks, positive) for ranks, positive in labels), strict=True)
            number = np.sum(known, axis=0)
            total = np.sum(areas, axis=0)
            columns.append(np.where(number > 0, total / np.maximum(number, 1), 0.5))
        return np.stack(columns, axis=1)

    return score


def average_precision(runs: Runs) -> Scorer:
    """Σ (Rₙ − Rₙ₋₁) Pₙ over the distinct scores, the highest first, as `metrics.average_precision`."""
    found = [[(_cumulated(scores), positive) for scores, positive in _columns(run)] for run in runs]

    def of_label(counts: Floats, cumulate: Callable[[Floats], tuple[Floats, Floats]], positive: Floats) -> Floats:
        ours = counts @ positive
        here, above = cumulate(counts * positive)
        _, retrieved = cumulate(counts)
        precision = np.divide(above, retrieved, out=np.zeros_like(above), where=retrieved > 0)
        areas: Floats = np.divide((here * precision).sum(axis=1), ours, out=np.zeros_like(ours), where=ours > 0)
        return areas

    def score(counts: Floats) -> Floats:
        return np.stack(
            [np.mean([of_label(counts, *column) for column in labels], axis=0) for labels in found], axis=1
        )  # fmt: skip

    return score


def _columns(run: ScoredExamples) -> list[tuple[NDArray[np.float64], Floats]]:
    """(probabilities, positives) of each ranked label: for two exclusive labels, the second only."""
    assert run.probabilities is not None, "the metric needs probabilities"
    gold = run.gold if run.gold.ndim == 2 else run.gold[:, None] == np.arange(len(run.labels))
    labels = [1] if run.gold.ndim == 1 and len(run.labels) == 2 else range(len(run.labels))
    return [(run.probabilities[:, label], gold[:, label].astype(np.float64)) for label in labels]


def _cumulated(scores: NDArray[np.float64]) -> Callable[[Floats], tuple[Floats, Floats]]:
    """Weights (resamples, examples) → (of each distinct score, of it and all higher ones), the highest score first."""
    distinct, places = np.unique(-scores, return_inverse=True)
    order = np.argsort(places, kind="stable")
    starts = np.searchsorted(places[order], np.arange(len(distinct)))

    def cumulate(weights: Floats) -> tuple[Floats, Floats]:
        here = np.add.reduceat(weights[:, order], starts, axis=1)
        return here, np.cumsum(here, axis=1)

    return cumulate
