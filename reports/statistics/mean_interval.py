"""The interval of a cell's own score over its finals' seeds and the examples of a split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meltpoint.reports.statistics.example_statistics import scorer
from meltpoint.reports.statistics.finals_scores import (
    FinalsScores,
    Problem,
    ResampledScores,
    Split,
    StoredScores,
    check_score,
)
from meltpoint.reports.statistics.hierarchical_bootstrap import TAIL, parts
from meltpoint.reports.statistics.holm import resampled
from meltpoint.sweeps.ledger.predictions import ScoredExamples
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.tasks.core.metrics import is_lower_better

RESAMPLES = 4000
"""Resamples of the examples in a table or a model card."""


@dataclass(frozen=True)
class MeanInterval:
    """A mean score over seeds with its 95 % interval.

    Attributes:
        mean: over the seeds.
        std: the sample standard deviation over the seeds; None of one seed.
        low, high: of the interval; None where the stored predictions do not give one (`reason`).
        seeds: number of finals.
        examples: examples of the split; None where no predictions are stored.
        reason: why there is no interval, in a few words; "" where there is one.
    """

    mean: float
    std: float | None
    low: float | None
    high: float | None
    seeds: int
    examples: int | None
    reason: str = ""

    @property
    def covers(self) -> str:
        """The variation that the interval covers, in words."""
        return "seeds and examples" if self.seeds > 1 else "examples alone: one seed"


def mean_interval(cell: CellSummary, stored: StoredScores, split: Split) -> MeanInterval | None:
    """The score of a cell's best setting on a split, by its metric; None where no final has one.

    With two seeds or more the interval is that of `hierarchical_bootstrap`, of the score itself in place of a
    difference. With one seed it is the bootstrap's over the examples, and says nothing of other seeds. It ends at the
    best score that there can be: 1, or 0 of an error.
    """
    over = cell.dev if split == "dev" else cell.test
    if over is None:
        return None
    try:
        found = stored.scores(FinalsScores(cell), split, cell.header.metric)
    except Problem as problem:
        return MeanInterval(over.mean, over.std, None, None, over.count, None, str(problem))
    low, high = _within_scale(*_bounds(found), cell.header.metric)
    return MeanInterval(over.mean, over.std, low, high, over.count, found.examples)


def run_interval(run: ScoredExamples, metric: str, observed: float, name: str) -> MeanInterval:
    """The score of one training run on a split, with the bootstrap's interval over its examples.

    Args:
        run: its predictions.
        observed: its score by the metric.
        name: of the split, by which its resamples are drawn (`resampled`).
    """
    try:
        check_score(run, metric, observed, "the kept model")
    except Problem as problem:
        return MeanInterval(observed, None, None, None, 1, run.count, str(problem))
    scores = resampled(scorer(metric, [run]), run.count, RESAMPLES, name, run.groups)[:, 0]
    low, high = np.quantile(scores, (TAIL, 1 - TAIL))
    low, high = _within_scale(float(low), float(high), metric)
    return MeanInterval(observed, None, low, high, 1, run.count)


def _within_scale(low: float, high: float, metric: str) -> tuple[float, float]:
    return (max(low, 0.0), high) if is_lower_better(metric) else (low, min(high, 1.0))


def _bounds(found: ResampledScores) -> tuple[float, float]:
    if len(found.seeds) > 1:
        return parts(found.observed, found.resampled, found.units).interval()
    low, high = np.quantile(found.resampled[:, 0], (TAIL, 1 - TAIL))
    return float(low), float(high)
