"""The plot of score against cost: a panel a task, the Pareto set of each encoder filled and joined."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from meltpoint.adapters import modes
from meltpoint.reports.drawing import COLOURS, MARKERS, legend, sheet
from meltpoint.reports.statistics.cost import Point, TradeOff, pareto
from meltpoint.tasks.core.scoring import axis_name, scale

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
