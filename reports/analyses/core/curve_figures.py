"""Figures of tuning curves: medians with their bands over a logarithmic axis; equal data give equal bytes."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meltpoint.reports.analyses.core.figures import ACROSS, DASHES, DOTS_PER_INCH, PANEL_INCHES
from meltpoint.reports.drawing import COLOURS, legend, sheet

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
