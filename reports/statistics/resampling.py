"""Resamples of the examples of a split: the same for all cells of a task, so that their scores are paired."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from meltpoint.reports.statistics.ranking_statistics import Scorer
from meltpoint.tasks.core.metric import Floats

CHUNK = 2**20
"""Counts that are in memory at a time: 8 MB."""
KEPT_CHUNKS = 16
"""The chunks of one task are asked for cell by cell: 4 000 resamples of 2 000 examples are 8 chunks."""


def resampled(score: Scorer, examples: int, resamples: int, name: str) -> Floats:
    """The scores of bootstrap resamples.

    Args:
        score: counts (resamples, examples) → scores (resamples, runs).
        examples: examples of the split.
        name: of the split; the draws follow from it and from the sizes.

    Returns:
        (resamples, runs).
    """
    return np.concatenate([score(counts) for counts in counts_of(examples, resamples, name)])


def counts_of(examples: int, resamples: int, name: str) -> Iterator[Floats]:
    """Chunks of counts, (some resamples, examples): how often each example was drawn; each row sums to `examples`."""
    rows = max(1, CHUNK // examples)
    seed = int.from_bytes(hashlib.sha256(f"{name} {examples}".encode()).digest()[:8], "big")
    for number, start in enumerate(range(0, resamples, rows)):
        yield _chunk(examples, min(rows, resamples - start), seed, number)


@lru_cache(maxsize=KEPT_CHUNKS)
def _chunk(examples: int, rows: int, seed: int, number: int) -> Floats:
    drawn = np.random.default_rng([seed, number]).integers(examples, size=(rows, examples))
    places = drawn + examples * np.arange(rows)[:, None]
    counts = np.bincount(places.ravel(), minlength=rows * examples).reshape(rows, examples).astype(np.float64)
    counts.flags.writeable = False  # it is kept, and given out more than once
    return counts
