"""All that a sweep's report shows, computed once for every format: the table, its comparisons, what tuning bought."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from meltpoint.reports.legend import legend
from meltpoint.reports.paper_comparison import paper_table_of, with_paper_numbers
from meltpoint.reports.paper_tables import PaperTable
from meltpoint.reports.statistics.comparison import Comparer
from meltpoint.reports.table_values import Delta, Matrix
from meltpoint.reports.tuning import TuningGain, tuning_gains
from meltpoint.sweeps.results.summary import SweepSummary


@dataclass(frozen=True)
class SweepResults:
    """The results of a sweep, ready to be rendered.

    Attributes:
        summary: the sweep's cells.
        table: the ❄/🔥 table, with a paper's numbers if one is compared with.
        paper: the paper's table, or None.
        paper_notes: remarks on the paper's numbers.
        gains: what tuning bought, cell by cell.
    """

    summary: SweepSummary
    table: Matrix
    paper: PaperTable | None
    paper_notes: tuple[str, ...]
    gains: tuple[TuningGain, ...]

    @property
    def family(self) -> list[Delta]:
        """The differences of the table that are adjusted for each other."""
        return [delta for delta in self.table.deltas if delta.in_family]

    @property
    def legend(self) -> list[str]:
        """The notes on how to read the table; those on the paper's numbers first."""
        return [*self.paper_notes, *legend(self.summary, self.gains)]


def results_of(summary: SweepSummary, beside: str | None = None, comparer: Comparer | None = None) -> SweepResults:
    """Compute a sweep's results, also while it is running.

    Args:
        beside: the paper's table to compare with; None for the one of the sweep's specification file, if any.
        comparer: None for one of the sweep's stored predictions.

    Raises:
        ValueError: the paper's table is unknown.
    """
    paper = paper_table_of(summary.spec, beside)
    comparer = comparer or Comparer(summary.folder)
    compare_by_task(summary, comparer)
    shown = with_paper_numbers(summary, beside, comparer)
    return SweepResults(summary, shown.table, paper, shown.notes, tuple(tuning_gains(summary, comparer)))


def compare_by_task(summary: SweepSummary, comparer: Comparer) -> None:
    """Let a comparer see the cells task by task: cells of a task share their resamples, of which it keeps a few."""
    by_task = sorted(summary.cells, key=lambda cell: cell.header.task)
    for _, cells in groupby(by_task, key=lambda cell: cell.header.task):
        first, *others = cells
        for cell in (first, *others):
            comparer.tuning(cell)
        for other in others:
            comparer.compare(other, first)
