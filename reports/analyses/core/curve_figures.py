"""Figures of tuning curves: medians with their bands over a logarithmic axis; equal data give equal bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from meltpoint.reports.analyses.core.figures import DASHES, draw_grid, in_rows
from meltpoint.reports.drawing import COLOURS

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

    def paint(panel: BandPanel, axes: Any) -> None:
        _paint(panel, labels, axes)

    return draw_grid(in_rows(panels), paint, labels, form)


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
