"""Best settings of each cell, and the chart of score against cost."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from meltpoint.adapters import modes
from meltpoint.reports.formats import COLOURS, MARKERS, legend, searched_names, setting_text, sheet
from meltpoint.reports.statistics.cost import Point, TradeOff, pareto
from meltpoint.reports.table_values import STAR
from meltpoint.sweeps.ledger.records import TrialRecord
from meltpoint.sweeps.results.cost import NOTHING, best_dev_text, spread_text
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.search.selection import Spread
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.tasks.core.metrics import gain
from meltpoint.tasks.core.scoring import axis_name, scale

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


ACROSS, PANEL_INCHES, LEGEND_INCHES, DOTS_PER_INCH = 4, (2.8, 2.5), 0.2, 200
SHORTEST_SECONDS = 1e-3
"""Where a run of less is drawn: the axis is logarithmic."""


def draw_cost(groups: Sequence[TradeOff], form: str) -> bytes:
    """Draw scores against the seconds of one run.

    Args:
        groups: at least one.
        form: "svg" or "png"; equal data give equal bytes.
    """
    tasks = list(dict.fromkeys((group.task, group.metric) for group in groups))
    encoders = list(dict.fromkeys(group.encoder for group in groups))
    labels = list(dict.fromkeys(_label(group.encoder, point) for group in groups for point in group.by_run))
    rows, columns = -(-len(tasks) // ACROSS), min(ACROSS, len(tasks))
    height = PANEL_INCHES[1] * rows + LEGEND_INCHES * -(-len(labels) // columns)
    with sheet(PANEL_INCHES[0] * columns, height) as figure:
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, (task, metric) in zip(places, tasks, strict=False):
            _panel(axes, f"{task} ({metric})", [group for group in groups if group.task == task], encoders)
        for axes in places[len(tasks) :]:
            axes.set_axis_off()
        legend(figure, labels, columns)
        file = io.BytesIO()
        figure.savefig(file, format=form, dpi=DOTS_PER_INCH, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()


def _panel(axes: Any, title: str, groups: Sequence[TradeOff], encoders: Sequence[str]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_title(title)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("seconds of one run")
    axes.set_ylabel(axis_name(groups[0].metric) + (" (dev)" if any(group.split == "dev" for group in groups) else ""))
    axes.grid(visible=True, linewidth=0.4, color="0.88")
    axes.spines[["top", "right"]].set_visible(False)
    for group in groups:
        colour, best = COLOURS[encoders.index(group.encoder) % len(COLOURS)], pareto(group.by_run)
        axes.plot(
            [_seconds(point) for point in best], [_shown(point) for point in best], color=colour, linewidth=0.9,
            drawstyle="steps-post",
        )  # fmt: skip
        for point in group.by_run:
            axes.plot(
                _seconds(point), _shown(point), color=colour, marker=_marker(point), markersize=5, linestyle="none",
                markerfacecolor=colour if point in best else "white", label=_label(group.encoder, point),
            )  # fmt: skip


def _shown(point: Point) -> float:
    return scale(point.metric) * point.score


def _seconds(point: Point) -> float:
    return max(SHORTEST_SECONDS, point.cost)


def _marker(point: Point) -> str:
    known = modes.names()
    return MARKERS[known.index(point.cell[1]) % len(MARKERS)] if point.cell[1] in known else MARKERS[-1]


def _label(encoder: str, point: Point) -> str:
    return f"{encoder}, {point.cell[1]}"
