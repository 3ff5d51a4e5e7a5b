"""What every figure shares: colours, markers, and a sheet to draw on that gives the same bytes for the same numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
"""Okabe & Ito 2008: told apart by every kind of colour vision; markers and dashes tell them apart in grey too."""

MARKERS = ("o", "s", "^", "D", "v")


@contextmanager
def sheet(width: float, height: float) -> Iterator[Any]:
    """A matplotlib figure; draw and save it inside.

    Args:
        width, height: in inches.
    """
    # A figure without pyplot takes no display and leaves no state behind; matplotlib takes a second to import.
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "meltpoint", "svg.fonttype": "path", "font.size": 8}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def legend(figure: Any, labels: Sequence[str], columns: int) -> None:
    """One legend below all panels, with these labels in this order; each must be in some panel."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        shown, names = axes.get_legend_handles_labels()
        handles |= dict(zip(names, shown, strict=True))
    figure.legend(
        [handles[label] for label in labels], labels, loc="outside lower center", ncols=columns, frameon=False
    )  # fmt: skip
