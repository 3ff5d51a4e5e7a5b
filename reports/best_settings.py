"""The best setting of each cell for programs: `meltpoint best`, as one JSON document or as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meltpoint.reports.formats import searched_names, setting_text
from meltpoint.sweeps.results.score_words import NOTHING, best_dev_text, spread_text
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.search.selection import Spread
from meltpoint.sweeps.specification.cells import cell_name


def chosen_cells(summary: SweepSummary, cell: str | None) -> list[CellSummary]:
    """The cells that a name stands for: one, or all without a name.

    Raises:
        ValueError: there is no such cell, or it has no finished trial yet.
    """
    if cell is None:
        return summary.cells
    names = {cell_name(*one.header.key): one for one in summary.cells}
    if cell not in names:
        raise ValueError(f"No cell '{cell}' in sweep '{summary.name}'. There is: {', '.join(names)}.")
    if names[cell].best is None:
        raise ValueError(f"Cell '{cell}' of sweep '{summary.name}' has no finished trial yet; see `meltpoint status`.")
    return [names[cell]]


def best_json(cells: Sequence[CellSummary]) -> list[dict[str, Any]]:
    """The document of `best --json`: a cell without a finished trial has null for its setting."""
    return [_cell_json(cell) for cell in cells]


def _cell_json(cell: CellSummary) -> dict[str, Any]:
    head, best = cell.header, cell.best
    return {
        "cell": cell_name(*head.key), "encoder": head.encoder, "mode": head.mode, "task": head.task,
        "variant": head.variant, "head": head.head, "metric": head.metric, "trial": best and best.id,
        "setting": best and best.setting, "dev": best and best.dev, "seeds": [final.seed for final in cell.finals],
        **_spread_json("dev", cell.dev), **_spread_json("test", cell.test),
    }  # fmt: skip


def _spread_json(split: str, over: Spread | None) -> dict[str, float | None]:
    return {f"{split}_mean": over.mean if over else None, f"{split}_std": over.std if over else None}


def best_rows(cells: Sequence[CellSummary]) -> list[dict[str, object]]:
    """A row a cell: its name, scores, the trial, and the searched part of the setting."""
    return [_cell_row(cell) for cell in cells]


def _cell_row(cell: CellSummary) -> dict[str, object]:
    best = cell.best
    return {
        "cell": cell_name(*cell.header.key), "head": cell.header.head,
        "best dev": best_dev_text(best),
        "test": spread_text(cell.test, cell.header.metric),
        "trial": NOTHING if best is None else best.id,
        "setting": NOTHING if best is None else setting_text(best.setting, searched_names(cell.header)),
    }  # fmt: skip
