"""Shared parts of the figures: colours, markers, legend, and reproducible matplotlib figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")
"""Okabe & Ito 2008: distinguishable with every kind of colour vision; markers and dashes help in grey."""

MARKERS = ("o", "s", "^", "D", "v")


@contextmanager
def sheet(width: float, height: float) -> Iterator[Any]:
    """A matplotlib figure, to be drawn and saved within the context; equal data give equal bytes.

    Args:
        width, height: in inches.
    """
    # Without pyplot, a figure needs no display and leaves no global state. matplotlib takes a second to import.
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "meltpoint", "svg.fonttype": "path", "font.size": 8}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def legend(figure: Any, labels: Sequence[str], columns: int) -> None:
    """One legend below all panels, with these labels in this order; each must occur in a panel."""
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        shown, names = axes.get_legend_handles_labels()
        handles |= dict(zip(names, shown, strict=True))
    figure.legend(
        [handles[label] for label in labels], labels, loc="outside lower center", ncols=columns, frameon=False
    )  # fmt: skip
