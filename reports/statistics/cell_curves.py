"""Statistics of a cell's curves, of rankings, and of the sources of variance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meltpoint.reports.statistics.tuning_curves import (
    LEVELS,
    MOST_TRIALS,
    CurvePoint,
    RandomTrials,
    TuningCurve,
    bounds,
    random_trials,
    sample_notes,
    shown_trials,
)
from meltpoint.sweeps.ledger.predictions import ScoredExamples
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.results.sweep_file import CellHeader
from meltpoint.tasks.core.metrics import Floats, is_lower_better
from meltpoint.tasks.core.wording import some

NOT_RECORDED = "no curve: where the settings come from was not recorded by that version"


@dataclass(frozen=True)
class CellCurve:
    """A cell's tuning curve, or the reason why there is none.

    Attributes:
        header: the cell.
        trials: its random trials.
        curve: of their scores; None if they allow none.
        reason: why there is no curve; "" where there is one.
        notes: what the curve leaves out or assumes, one line each.
    """

    header: CellHeader
    trials: RandomTrials
    curve: TuningCurve | None
    reason: str = ""
    notes: tuple[str, ...] = ()

    @property
    def valid_words(self) -> str:
        """The valid range: `from 16 random trials: valid up to 1 trial (95 % band), 2 trials (80 % band)`."""
        if self.curve is None:
            return self.reason
        ranges = zip(LEVELS, self.curve.valid, strict=True)
        parts = [f"{some(last, 'trial') if last else 'none'} ({level:.0%} band)" for level, last in ranges]
        text = f"from {some(len(self.trials.scores), 'random trial')}: valid up to {', '.join(parts)}"
        return text.replace("%", " %")

    def seconds(self, trials: float) -> float | None:
        """The expected cost of so many trials, in the unit of `trials.cost`: the mean of one, times their number."""
        cost = self.trials.cost
        return None if cost is None else trials * cost.seconds


def cell_curve(cell: CellSummary, most: int = MOST_TRIALS) -> CellCurve:
    """The tuning curve of a cell, from its random trials alone.

    Args:
        cell: a cell of a sweep.
        most: of more random trials the first so many count.
    """
    trials = random_trials(cell, most)
    missing = cell.counts.get("running", 0) + cell.counts.get("missing", 0)
    notes = tuple(sample_notes(trials, cell.header.metric, missing))
    if reason := _reason(cell, trials):
        return CellCurve(cell.header, trials, None, reason, notes)
    curve = TuningCurve(trials.scores, bounds(cell.header.metric))
    if not any(curve.valid):
        count = some(len(trials.scores), "random trial")
        reason = f"no curve: {count}; `--searcher random` or more trials give one"
        return CellCurve(cell.header, trials, None, reason, notes)
    return CellCurve(cell.header, trials, curve, "", notes)


def _reason(cell: CellSummary, trials: RandomTrials) -> str:
    """The reason why the trials of a cell allow no curve, however many they are; "" if they do."""
    if cell.search and not trials.is_recorded:
        return NOT_RECORDED
    if is_lower_better(cell.header.metric):
        return f"no curve: {cell.header.metric} is an error without a largest value, which the bands need"
    if trials.stopped:
        count = some(trials.stopped, "random trial")
        return f"no curve: {count} stopped early, whose best score is not known; search without early stopping"
    return ""


@dataclass(frozen=True)
class CurveRow:
    """A row of the table of tuning curves: a cell at a number of trials, or a cell without a curve.

    Attributes:
        header: the cell.
        random_trials: the number of scores that the curve is computed from.
        suggested: where the settings of all search trials come from: `1 first, 15 random`.
        valid: for each of `LEVELS` the largest valid number of trials; empty without a curve.
        trials: the number of trials of this row; None without a curve.
        seconds: their expected cost in `unit`; None if not known.
        unit: `GPU-seconds`, `CPU worker-seconds`, or "".
        point: the curve at that number of trials; None without a curve.
        note: the reason why there is no curve, and what the curve leaves out.
    """

    header: CellHeader
    random_trials: int
    suggested: str
    valid: tuple[int, ...] = ()
    trials: int | None = None
    seconds: float | None = None
    unit: str = ""
    point: CurvePoint | None = None
    note: str = ""


def rows_of(cell: CellCurve) -> list[CurveRow]:
    """The rows of one cell: several with a curve (`shown_trials`), one without."""
    trials = cell.trials
    note = "; ".join([cell.reason] * bool(cell.reason) + list(cell.notes))
    if cell.curve is None:
        return [CurveRow(cell.header, len(trials.scores), trials.words, note=note)]
    shown = shown_trials(max(cell.curve.valid))
    unit = trials.cost.unit if trials.cost else ""
    return [
        CurveRow(cell.header, len(trials.scores), trials.words, cell.curve.valid, k, cell.seconds(k), unit, point, note)
        for k, point in zip(shown, cell.curve.at(shown), strict=True)
    ]


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
    """(probabilities, positives) of each label that is ranked: of two exclusive labels, the second alone."""
    assert run.probabilities is not None, "the metric is of probabilities"
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


@dataclass(frozen=True)
class Deviation:
    """The deviation of a score over repeated runs.

    Attributes:
        count: number of runs.
        mean: their mean.
        std: sample standard deviation, with `count − 1`; None for one run.
        low, high: the ends of its 95 % interval; None like `std`.
    """

    count: int
    mean: float
    std: float | None
    low: float | None
    high: float | None


def deviation(scores: Sequence[float], level: float = 0.95) -> Deviation:
    """The standard deviation of scores, with its chi-square interval, which supposes that they are normal.

    The interval is wide for few runs: of five it reaches from 0.60 to 2.87 times the estimate.

    Args:
        scores: of one run or more.
    """
    count, mean = len(scores), statistics.fmean(scores)
    if count < 2:
        return Deviation(count, mean, None, None, None)
    from scipy.stats import chi2  # takes a second to import

    std, freedom = statistics.stdev(scores), count - 1
    low, high = (
        std * math.sqrt(freedom / float(chi2.ppf(place, freedom))) for place in ((1 + level) / 2, (1 - level) / 2)
    )
    return Deviation(count, mean, std, low, high)


@dataclass(frozen=True)
class Share:
    """The variance of one source as a share of another's, with its 95 % interval."""

    value: float
    low: float
    high: float


def share(part: Deviation, whole: Deviation, level: float = 0.95) -> Share | None:
    """The variance of one source as a share of the variance with all sources; None where either is unknown or 0.

    The interval is that of F, which supposes normal scores of independent runs. Of five runs each it reaches from a
    tenth to ten times the estimate.
    """
    if part.std is None or not whole.std:
        return None
    from scipy.stats import f  # takes a second to import

    value, freedoms = (part.std / whole.std) ** 2, (part.count - 1, whole.count - 1)
    low, high = (value / float(f.ppf(place, *freedoms)) for place in ((1 + level) / 2, (1 - level) / 2))
    return Share(value, low, high)
