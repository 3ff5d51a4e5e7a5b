"""Figures of analyses."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meltpoint.reports.formats import COLOURS, MARKERS, legend, sheet

DASHES = ("-", "--", "-.", ":", (0, (5, 1)))
PANEL_INCHES, DOTS_PER_INCH, ACROSS = (3.2, 2.5), 200, 4


@dataclass(frozen=True)
class Line:
    """A line of a panel.

    Attributes:
        label: its label in the legend.
        y: one value per layer, from layer 0, or per number of `x`.
        error: half the length of the error bar at each value, or None.
        is_reference: True for a reference line, drawn thin and grey, without markers.
        x: the horizontal places; None for the layers 0, 1, …
    """

    label: str
    y: tuple[float, ...]
    error: tuple[float, ...] | None = None
    is_reference: bool = False
    x: tuple[float, ...] | None = None


@dataclass(frozen=True)
class Panel:
    """One set of axes; `y_range` None fits the range to the lines."""

    title: str
    y_name: str
    lines: tuple[Line, ...]
    y_range: tuple[float, float] | None = None
    x_name: str = "layer"


def in_rows(panels: Sequence[Panel]) -> list[Sequence[Panel]]:
    """Arrange panels in rows of at most four, the width of a page."""
    return [panels[start : start + ACROSS] for start in range(0, len(panels), ACROSS)]


def draw(rows: Sequence[Sequence[Panel]], form: str) -> bytes:
    """Draw panels in rows and return the bytes of the file.

    Args:
        rows: each has at least one panel; shorter rows are padded with empty space.
        form: "svg" or "png".
    """
    columns = max(len(row) for row in rows)
    width, height = PANEL_INCHES
    with sheet(width * columns, height * len(rows) + 0.3) as figure:
        places = figure.subplots(len(rows), columns, squeeze=False)
        for row, across in zip(rows, places, strict=True):
            for place, axes in enumerate(across):
                if place >= len(row):
                    axes.set_axis_off()
                else:
                    _panel(row[place], axes)
        labels = list(dict.fromkeys(line.label for row in rows for panel in row for line in panel.lines))
        legend(figure, labels, columns=min(4, 2 * columns))
        file = io.BytesIO()
        figure.savefig(file, format=form, dpi=DOTS_PER_INCH, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()


def _panel(panel: Panel, axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_name)
    axes.set_ylabel(panel.y_name)
    if all(line.x is None for line in panel.lines):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.y_range is not None:
        axes.set_ylim(panel.y_range)
    axes.grid(visible=True, linewidth=0.4, color="0.88")
    axes.spines[["top", "right"]].set_visible(False)
    shown = [line for line in panel.lines if not line.is_reference]
    for line in panel.lines:
        places = range(len(line.y)) if line.x is None else line.x
        if line.is_reference:
            axes.plot(places, line.y, color="0.45", linewidth=0.9, linestyle=(0, (1, 1)), label=line.label)
            continue
        number = shown.index(line) % len(COLOURS)
        axes.errorbar(
            places, line.y, yerr=line.error, label=line.label, color=COLOURS[number], marker=MARKERS[number],
            linestyle=DASHES[number], linewidth=1.3, markersize=3.5, capsize=2, elinewidth=0.8,
        )  # fmt: skip


SHADES = (0.14, 0.26)
"""Opacity of the bands, from the widest to the narrowest; they lie upon one another."""


@dataclass(frozen=True)
class Shade:
    """A band between two lines over `x`; it may end before the line that it belongs to."""

    x: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class BandLine:
    """A line with bands, the widest first; lines with the same label have the same colour in every panel."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    shades: tuple[Shade, ...] = ()


@dataclass(frozen=True)
class BandPanel:
    """One set of axes; `x` is logarithmic."""

    title: str
    x_name: str
    y_name: str
    lines: tuple[BandLine, ...]


def draw_bands(panels: Sequence[BandPanel], form: str) -> bytes:
    """Draw panels, at most four in a row, and return the bytes of the file.

    Args:
        form: "svg" or "png".
    """
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    columns, rows = min(ACROSS, len(panels)), math.ceil(len(panels) / ACROSS)
    width, height = PANEL_INCHES
    with sheet(width * columns, height * rows + 0.3) as figure:
        places = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, panel in zip(places, panels, strict=False):
            _paint(panel, labels, axes)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        legend(figure, labels, columns=min(4, 2 * columns))
        file = io.BytesIO()
        figure.savefig(file, format=form, dpi=DOTS_PER_INCH, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()


def _paint(panel: BandPanel, labels: Sequence[str], axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0, 7.0)))  # most span less than a power of ten
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_name)
    axes.set_ylabel(panel.y_name)
    axes.grid(visible=True, linewidth=0.4, color="0.88")
    axes.spines[["top", "right"]].set_visible(False)
    for line in panel.lines:
        place = labels.index(line.label)
        colour = COLOURS[place % len(COLOURS)]
        for shade, opacity in zip(line.shades, SHADES, strict=True):
            axes.fill_between(shade.x, shade.low, shade.high, color=colour, alpha=opacity, linewidth=0)
        dash = DASHES[place % len(DASHES)]
        axes.plot(line.x, line.y, label=line.label, color=colour, linestyle=dash, linewidth=1.3)
