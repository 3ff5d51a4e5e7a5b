"""The columns that name a cell in tables with a row per cell."""

from __future__ import annotations

from meltpoint.reports.analyses.core.tables import Column
from meltpoint.sweeps.results.summary import CellSummary

CELL_COLUMNS = (Column("encoder"), Column("mode"), Column("task"))


def cell_values(cell: CellSummary) -> tuple[str, str, str]:
    """The cell's values of `CELL_COLUMNS`; a variant stands in brackets behind its mode."""
    head = cell.header
    return head.encoder, f"{head.mode} ({head.variant})" if head.variant else head.mode, head.task


def panel_title(cell: CellSummary) -> str:
    """The cell's name above a panel, in two lines, which fit its width."""
    encoder, mode, task = cell_values(cell)
    return f"{encoder}, {task}\n{mode}"
