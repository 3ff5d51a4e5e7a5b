"""All that a sweep's report shows, computed once for every format: the table, its comparisons, what tuning bought."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, groupby

from meltpoint.reports.difference_rows import place_of
from meltpoint.reports.differences import Split
from meltpoint.reports.legend import legend
from meltpoint.reports.paper_comparison import paper_table_of, with_paper_numbers
from meltpoint.reports.paper_tables import PaperTable
from meltpoint.reports.recommendation import Recommendation, recommendations
from meltpoint.reports.statistics.comparison import Comparer, Comparison
from meltpoint.reports.table_values import Delta, Matrix, starred
from meltpoint.reports.tuning import TuningGain, tuning_gains
from meltpoint.sweeps.ledger.records import CellKey
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary


@dataclass(frozen=True)
class SweepResults:
    """The results of a sweep, ready to be rendered.

    Attributes:
        summary: the sweep's cells.
        table: the ❄/🔥 table, with a paper's numbers if one is compared with.
        paper: the paper's table, or None.
        paper_notes: remarks on the paper's numbers.
        gains: what tuning bought, cell by cell.
        recommendations: one for each task with scored finals, the first thing that every view shows.
    """

    summary: SweepSummary
    table: Matrix
    paper: PaperTable | None
    paper_notes: tuple[str, ...]
    gains: tuple[TuningGain, ...]
    recommendations: tuple[Recommendation, ...] = ()

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
        comparer: None for one of the sweep's stored predictions.
        margin: of the recommendations, as a fraction; None for the sweep's own.

    Raises:
        ValueError: the paper's table is unknown.
    """
    paper = paper_table_of(summary.spec, beside)
    split = paper.split if paper else "test"
    margin = summary.spec.margin if margin is None else margin
    comparer = ComparedOnce(comparer or Comparer(summary.folder, margin=margin, cells=summary.cells))
    compare_by_task(summary, comparer, split)
    shown = with_paper_numbers(summary, beside, comparer)
    gains = tuple(tuning_gains(summary, comparer))
    advice = recommendations(summary, shown.table.deltas, split, margin)
    table = starred(shown.table, {one.winner.cell.header.key for one in advice})
    return SweepResults(summary, table, paper, shown.notes, gains, advice)


class ComparedOnce(Comparer):
    """A comparer that remembers its comparisons: a table asks for some of them twice."""

    def __init__(self, inner: Comparer) -> None:
        super().__init__(inner.folder, inner.resamples, inner.margin)
        self._inner = inner
        self._known: dict[tuple[CellKey, CellKey | None, Split, str], Comparison | None] = {}

    def compare(
        self, upper: CellSummary, lower: CellSummary, split: Split = "test", metric: str = ""
    ) -> Comparison | None:
        """As `Comparer.compare`."""
        key = (upper.header.key, lower.header.key, split, metric)
        if key not in self._known:
            self._known[key] = self._inner.compare(upper, lower, split, metric)
        return self._known[key]

    def tuning(self, cell: CellSummary, split: Split = "test", metric: str = "") -> Comparison | None:
        """As `Comparer.tuning`."""
        key = (cell.header.key, None, split, metric)
        if key not in self._known:
            self._known[key] = self._inner.tuning(cell, split, metric)
        return self._known[key]


def compare_by_task(summary: SweepSummary, comparer: Comparer, split: Split) -> None:
    """Let a comparer see the cells task by task: cells of a task share their resamples, of which it keeps a few.

    The pairs are those of the table: of one encoder, in the order of its modes.
    """

    def place(cell: CellSummary) -> tuple[str, str, str, int]:
        return cell.header.task, cell.header.encoder, cell.header.variant, place_of(cell.header.mode)

    for _, cells in groupby(sorted(summary.cells, key=place), key=lambda cell: cell.header.task):
        own = list(cells)
        for cell in own:
            comparer.tuning(cell)
        for lower, upper in combinations(own, 2):
            if (lower.header.encoder, lower.header.variant) == (upper.header.encoder, upper.header.variant):
                comparer.compare(upper, lower, split)
