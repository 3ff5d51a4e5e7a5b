"""Results of a sweep as one object: summary, matrix, recommendations and the legend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from meltpoint.reports.formats import bounds_text, symbol
from meltpoint.reports.matrix import ENSEMBLE_NOTE
from meltpoint.reports.papers import paper_table_of, with_paper_numbers
from meltpoint.reports.recommendation import Recommendation, recommendations
from meltpoint.reports.statistics.comparison import Comparer, Comparison
from meltpoint.reports.table_values import Delta, Matrix, starred
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.tasks.core.metrics import is_lower_better
from meltpoint.tasks.core.scoring import difference_text
from meltpoint.tasks.core.wording import some

WON = "the published setting won the search"
NO_FINALS = "the published setting has no finals"
ON_DEV = " on dev, on which the winner was chosen"


@dataclass(frozen=True)
class TuningGain:
    """A cell's winner against its published setting.

    Attributes:
        cell: the cell.
        comparison: winner − published setting; None if they are the same, or the latter has no finals.
        words: the conclusion.
    """

    cell: CellSummary
    comparison: Comparison | None
    words: str


def _gain(cell: CellSummary, comparer: Comparer) -> TuningGain:
    """The gain of a cell that has finals, on test if both settings are scored there."""
    if not cell.default_finals:
        return TuningGain(cell, None, NO_FINALS)
    if [final.setting for final in cell.default_finals[:1]] == [final.setting for final in cell.finals[:1]]:
        return TuningGain(cell, None, WON)
    comparison = comparer.tuning(cell)
    return TuningGain(cell, comparison, NO_FINALS if comparison is None else gain_in_words(comparison))


def gain_in_words(gain: Comparison) -> str:
    """The conclusion, such as `tuning bought +1.3 [+0.4, +2.2]`."""
    value, where = difference_text(gain.delta, gain.metric), ON_DEV if gain.split == "dev" else ""
    if gain.low is None or gain.high is None:
        return f"{value}{where}, no interval: {gain.reason}"
    text = f"{value} {bounds_text(gain.low, gain.high, gain.metric)}{where}"
    if not gain.excludes_zero:
        return f"tuning not shown to help: {text}"
    return f"tuning bought {text}" if gain.gain > 0 else f"tuning cost {text}: the published setting is better"


def ran_nowhere(gains: Sequence[TuningGain]) -> bool:
    """True if no cell has the published setting's finals."""
    return all(gain.words == NO_FINALS for gain in gains)


SPREAD_NOTE = (
    "Figures are ×100 (correlations too): the mean ± the sample standard deviation over seeds, on test unless marked "
    "`dev`. One seed has no deviation."
)
DIFFERENCE_NOTE = (
    "Δ is the difference of two means on the same split, with its 95 % interval from the spread over seeds and a "
    "paired bootstrap over examples: other seeds and other examples of the same kind would mostly give a Δ within it. "
    "Another search might have found another setting; no interval covers that. Without an interval, ± is the standard "
    "error over seeds alone, sqrt(s1²/n1 + s2²/n2)."
)
HOLM_NOTE = (
    "Adjusted p: Holm's, over all pairs of modes by each task's own metric; below 0.05 a difference is claimed. The "
    "intervals are not adjusted. "
    "P(A > B): the probability that one run of A beats one of B on new examples."
)
TUNING_NOTE = (
    "What tuning bought: the winner's finals minus the published setting's, with the same seeds. These intervals are "
    "not adjusted."
)
STAR_NOTE = "★ marks the recommended mode of each task; its sentence says how certain that is."


def legend(summary: SweepSummary, gains: Sequence[TuningGain]) -> list[str]:
    """The notes of a sweep's table, one line each."""
    lines = [STAR_NOTE, SPREAD_NOTE, *_errors(summary), DIFFERENCE_NOTE, *searches_note(summary), HOLM_NOTE]
    lines += [TUNING_NOTE] if gains and not ran_nowhere(gains) else []
    return lines + ([ENSEMBLE_NOTE] if summary.ensembles else [])


def searches_note(summary: SweepSummary) -> list[str]:
    """One line on whether the modes had equal searches, if there are several modes."""
    spec, searches = summary.spec, dict[str, list[str]]()
    for block in spec.products():
        for mode in block.modes:
            searches.setdefault(mode, []).append(f"{some(block.trials, 'setting')} by {spec.searcher_of(block)}")
    if len(searches) < 2:
        return []
    each = {mode: " or ".join(dict.fromkeys(texts)) for mode, texts in searches.items()}
    if any(cell.early_end or cell.closed_early for cell in summary.cells):
        ran = {mode: sum(len(cell.search) for cell in summary.cells if cell.header.mode == mode) for mode in each}
        counts = ", ".join(f"{symbol(mode)} {some(number, 'setting')}" for mode, number in ran.items())
        return [f"Some searches ended early. Settings tried: {counts}."]
    if len({*each.values()}) == 1:
        return [f"The modes have equal searches: {each.popitem()[1]} in a cell."]
    unequal = ", ".join(f"{symbol(mode)} {text}" for mode, text in each.items())
    return [
        f"The modes have unequal searches: {unequal} in a cell. The best of more settings is better by chance alone."
    ]


def _errors(summary: SweepSummary) -> list[str]:
    """The note on columns of errors, if there are any."""
    heads = [cell.header for cell in summary.cells]
    shown = (name for head in heads for name in (head.metric, *head.beside, *head.also_test))
    names = dict.fromkeys(name for name in shown if is_lower_better(name))
    if not names:
        return []
    return [
        f"For {' and '.join(names)}, lower is better, so a Δ below 0 favours the upper side; they are in the unit of "
        "the task's scores, not ×100."
    ]


@dataclass(frozen=True)
class SweepResults:
    """The results of a sweep, ready to be rendered.

    Attributes:
        summary: the sweep's cells.
        table: the ❄/🔥 table, with a paper's numbers if one is compared with.
        paper_notes: remarks on the paper's numbers.
        gains: the gain from tuning, cell by cell.
        recommendations: one for each task with scored finals, the first thing that every view shows.
        intervals: of the cells' scores over seeds and examples, 95 % (`Comparer.interval`), for those that have one.
    """

    summary: SweepSummary
    table: Matrix
    paper_notes: tuple[str, ...]
    gains: tuple[TuningGain, ...]
    recommendations: tuple[Recommendation, ...] = ()
    intervals: Mapping[CellKey, tuple[float, float]] = field(default_factory=dict)

    @property
    def family(self) -> list[Delta]:
        """The differences of the table that are adjusted for each other."""
        return [delta for delta in self.table.deltas if delta.in_family]

    @property
    def legend(self) -> list[str]:
        """The notes on how to read the table; those on the paper's numbers first."""
        return [*self.paper_notes, *legend(self.summary, self.gains)]


def results_of(
    summary: SweepSummary, beside: str | None = None, comparer: Comparer | None = None, margin: float | None = None
) -> SweepResults:
    """Compute a sweep's results, also while it is running.

    Args:
        beside: the paper's table to compare with; None for the one of the sweep's specification file, if any.
        comparer: None for a new one over the sweep's stored predictions.
        margin: of the recommendations, as a fraction; None for the sweep's own.

    Raises:
        ValueError: the paper's table is unknown.
    """
    paper = paper_table_of(summary.spec, beside)
    split = paper.split if paper else "test"
    margin = summary.spec.margin if margin is None else margin
    comparer = comparer or Comparer(summary.folder, margin=margin, cells=summary.cells)
    shown, notes = with_paper_numbers(summary, paper, comparer)
    gains = tuple(_gain(cell, comparer) for cell in summary.cells if cell.finals)
    advice = recommendations(summary, shown.deltas, split, margin)
    table = starred(shown, {one.winner.cell.header.key for one in advice})
    found = {cell.header.key: comparer.interval(cell) for cell in summary.cells}
    intervals = {key: bounds for key, bounds in found.items() if bounds is not None}
    return SweepResults(summary, table, notes, gains, advice, intervals)
