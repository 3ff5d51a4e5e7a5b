"""Parts of the tests: Holm's adjustment, resampling of examples.

Where examples come in groups (documents, authors), whole groups are drawn: the cluster bootstrap (Davison & Hinkley
1997, section 3.8). Examples of a group may depend on each other; groups do not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from meltpoint.reports.statistics.ranking_statistics import Scorer
from meltpoint.tasks.core.metrics import Floats


def holm(p_values: Sequence[float]) -> list[float]:
    """The adjusted p-values, in the same order: with them below α, the chance of any false claim is at most α.

    The k-th smallest of m, from 0, is multiplied by m − k; none is adjusted below a smaller one, or above 1.
    """
    count, highest = len(p_values), 0.0
    found = [0.0] * count
    for step, place in enumerate(sorted(range(count), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (count - step) * p_values[place]))
        found[place] = highest
    return found


Groups = NDArray[np.int64] | None

CHUNK = 2**20
"""Counts that are in memory at a time: 8 MB."""
KEPT_CHUNKS = 16
"""The chunks of one task are asked for cell by cell: 4 000 resamples of 2 000 examples are 8 chunks."""


def resampled(score: Scorer, examples: int, resamples: int, name: str, groups: Groups = None) -> Floats:
    """The scores of bootstrap resamples.

    Args:
        score: counts (resamples, examples) → scores (resamples, runs).
        examples: examples of the split.
        name: of the split; the draws follow from it and from the sizes.
        groups: the number of each example's group, (examples,); None where each example is drawn by itself.

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
    """The number of what is drawn independently: of groups, or of examples where there are none."""
    return examples if groups is None else int(groups.max()) + 1


@lru_cache(maxsize=KEPT_CHUNKS)
def _chunk(units: int, rows: int, seed: int, number: int) -> Floats:
    drawn = np.random.default_rng([seed, number]).integers(units, size=(rows, units))
    places = drawn + units * np.arange(rows)[:, None]
    counts = np.bincount(places.ravel(), minlength=rows * units).reshape(rows, units).astype(np.float64)
    counts.flags.writeable = False  # it is kept, and given out more than once
    return counts
