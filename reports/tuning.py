"""The gain by tuning: each cell's finalists against the published setting, run with the same seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meltpoint.reports.formats import bounds_text
from meltpoint.reports.statistics.comparison import Comparer, Comparison
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.tasks.core.scoring import difference_text

WON = "the published setting won the search"
NOT_RUN, NOT_YET = "the published setting was not run", "the published setting has not run yet"
ON_DEV = " on dev, by which the winner was chosen"


@dataclass(frozen=True)
class TuningGain:
    """A cell's winner against its published setting.

    Attributes:
        cell: the cell.
        comparison: winner − published setting; None where they are the same, or the latter has no finals.
        words: the conclusion.
    """

    cell: CellSummary
    comparison: Comparison | None
    words: str


def tuning_gains(summary: SweepSummary, comparer: Comparer) -> list[TuningGain]:
    """The gain of every cell that has finals, on test where both settings are scored there."""
    return [_gain(cell, summary, comparer) for cell in summary.cells if cell.finals]


def _gain(cell: CellSummary, summary: SweepSummary, comparer: Comparer) -> TuningGain:
    if not cell.default_finals:
        return TuningGain(cell, None, NOT_YET if summary.state == "running" else NOT_RUN)
    if [final.setting for final in cell.default_finals[:1]] == [final.setting for final in cell.finals[:1]]:
        return TuningGain(cell, None, WON)
    comparison = comparer.tuning(cell)
    return TuningGain(cell, comparison, NOT_RUN if comparison is None else gain_in_words(comparison))


def gain_in_words(gain: Comparison) -> str:
    """`tuning bought +1.3 [+0.4, +2.2]`, or that it is not shown to help."""
    value, where = difference_text(gain.delta, gain.metric), ON_DEV if gain.split == "dev" else ""
    if gain.low is None or gain.high is None:
        return f"{value}{where}, no interval: {gain.reason}"
    text = f"{value} {bounds_text(gain.low, gain.high, gain.metric)}{where}"
    if not gain.excludes_zero:
        return f"tuning not shown to help: {text}"
    return f"tuning bought {text}" if gain.gain > 0 else f"tuning cost {text}: the published setting is better"


def ran_nowhere(gains: Sequence[TuningGain]) -> bool:
    """True if no cell has the published setting's finals."""
    return all(gain.words in (NOT_RUN, NOT_YET) for gain in gains)
