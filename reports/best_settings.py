"""Best settings of each cell, ranked within its task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from meltpoint.reports.formats import searched_names, setting_text
from meltpoint.reports.table_values import STAR
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.cost import NOTHING, best_dev_text, spread_text
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.search.selection import Spread
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core.metrics import gain

if TYPE_CHECKING:
    from meltpoint.reports.results import SweepResults


@dataclass(frozen=True)
class RankedCell:
    """A cell with its rank among the cells of its task.

    Attributes:
        rank, of: its place, from 1, and the number of cells.
        is_recommended: True for the one that every table marks.
    """

    cell: CellSummary
    rank: int
    of: int
    is_recommended: bool

    @property
    def label(self) -> str:
        """`1/3`, or `1/3 ★` if it is recommended, as in MLflow."""
        return f"{self.rank}/{self.of}{f' {STAR}' if self.is_recommended else ''}"


def ranked_cells(results: SweepResults) -> list[RankedCell]:
    """The cells task by task, the best first: by the finals that a recommendation ranks, the others by dev."""
    winners = {id(one.winner.cell) for one in results.recommendations}
    places = {id(one.cell): place for each in results.recommendations for place, one in enumerate(each.standings)}
    found = []
    for task in dict.fromkeys(cell.header.task for cell in results.summary.cells):
        cells = [cell for cell in results.summary.cells if cell.header.task == task]
        cells.sort(key=lambda cell: (places.get(id(cell), len(cells)), -dev_gain(cell.best)))
        found += [RankedCell(cell, rank, len(cells), id(cell) in winners) for rank, cell in enumerate(cells, 1)]
    return found


def dev_gain(record: TrialRecord | None) -> float:
    """A trial's dev score, the higher the better; failed trials come last."""
    return -inf if record is None or record.dev is None else gain(record.metric, record.dev)


def chosen_cells(results: SweepResults, cell: str | None) -> list[RankedCell]:
    """The cells that a name stands for: one, or all without a name, the best of each task first.

    Raises:
        ValueError: there is no such cell, or it has no finished trial yet.
    """
    ranked, summary = ranked_cells(results), results.summary
    if cell is None:
        return ranked
    names = {cell_name(*one.cell.header.key): one for one in ranked}
    if cell not in names:
        raise ValueError(f"No cell '{cell}' in sweep '{summary.name}'. There is: {', '.join(names)}.")
    if names[cell].cell.best is None:
        raise ValueError(f"Cell '{cell}' of sweep '{summary.name}' has no finished trial yet; see `meltpoint status`.")
    return [names[cell]]


def best_json(cells: Sequence[RankedCell]) -> list[dict[str, Any]]:
    """The document of `best --json`: a cell without a finished trial has null for its setting."""
    return [_cell_json(cell) for cell in cells]


def _cell_json(ranked: RankedCell) -> dict[str, Any]:
    cell = ranked.cell
    head, best = cell.header, cell.best
    return {
        "cell": cell_name(*head.key), "encoder": head.encoder, "mode": head.mode, "task": head.task,
        "variant": head.variant, "head": head.head, "metric": head.metric, "rank": ranked.rank,
        "recommended": ranked.is_recommended, "trial": best and best.id,
        "setting": best and best.setting, "dev": best and best.dev, "seeds": [final.seed for final in cell.finals],
        **_spread_json("dev", cell.dev), **_spread_json("test", cell.test),
    }  # fmt: skip


def _spread_json(split: str, over: Spread | None) -> dict[str, float | None]:
    return {f"{split}_mean": over.mean if over else None, f"{split}_std": over.std if over else None}


def best_rows(cells: Sequence[RankedCell]) -> list[dict[str, object]]:
    """A row a cell: its name, rank, scores, and the searched part of the setting."""
    return [_cell_row(cell) for cell in cells]


def _cell_row(ranked: RankedCell) -> dict[str, object]:
    cell = ranked.cell
    best = cell.best
    return {
        "cell": cell_name(*cell.header.key), "rank": ranked.label,
        "test": spread_text(cell.test, cell.header.metric),
        "best dev": best_dev_text(best), "head": cell.header.head,
        "setting": NOTHING if best is None else setting_text(best.setting, searched_names(cell.header)),
    }  # fmt: skip
