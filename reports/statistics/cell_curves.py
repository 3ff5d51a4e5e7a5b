"""The tuning curve of each cell of a sweep, and its rows in tables."""

from __future__ import annotations

from dataclasses import dataclass

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
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.results.sweep_file import CellHeader
from meltpoint.tasks.core.metrics import is_lower_better
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
