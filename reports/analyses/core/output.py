"""Tables and figures of the analyses, written as Markdown, CSV, LaTeX, SVG and PNG."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from meltpoint.reports.formats import booktabs, bullets, markdown_table
from meltpoint.sweeps.results.cost import NOTHING
from meltpoint.tasks.core.scoring import difference_text, in_points, score_text
from meltpoint.tasks.core.wording import counted

Value = str | float | int | None


class Score(float):
    """A score, or a difference of scores, with its metric: errors are shown in the unit of their task's scores.

    Args:
        value: as recorded: a fraction, a correlation or an error.
    """

    metric: str

    def __new__(cls, value: float, metric: str) -> Score:
        """The number with its metric."""
        made = super().__new__(cls, value)
        made.metric = metric
        return made

    @classmethod
    def each(cls, values: Iterable[float | None], metric: str) -> tuple[Score | None, ...]:
        """Scores of one metric; None stays None."""
        return tuple(None if value is None else cls(value, metric) for value in values)


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        text: formats a value for Markdown and LaTeX, where None is a dash; CSV has the unformatted value.
        is_figure: True to align right.
    """

    name: str
    text: Callable[[Any], str] = str
    is_figure: bool = False


def figures(name: str, form: str) -> Column:
    """A column of numbers, formatted by a format such as `.3f`, with a typographic minus."""
    return Column(name, lambda value: format(value, form).replace("-", "−"), is_figure=True)


def points(name: str, form: str = ".1f") -> Column:
    """A column of fractions, shown ×100, or of `Score`s, shown in the unit of their metric."""

    def text(value: float) -> str:
        if isinstance(value, Score) and not in_points(value.metric):
            return difference_text(value, value.metric) if form.startswith("+") else score_text(value, value.metric)
        return format(100 * value, form).replace("-", "−")

    return Column(name, text, is_figure=True)


@dataclass(frozen=True)
class AnalysisTable:
    """A titled table with notes.

    Attributes:
        name: the name of its files, without the extension.
        title: a one-line title.
        notes: explanations below the table, one line each.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), f"{self.name}: a row of another width"

    def texts(self) -> list[list[str]]:
        """The formatted cells of every row."""
        pairs = (zip(self.columns, row, strict=True) for row in self.rows)
        return [[NOTHING if value is None else column.text(value) for column, value in row] for row in pairs]

    @property
    def _sides(self) -> str:
        return "".join("r" if column.is_figure else "l" for column in self.columns)

    def markdown(self) -> str:
        """The title, the table, and the notes as a list, in Markdown."""
        table = markdown_table([column.name for column in self.columns], self.texts(), self._sides)
        return "\n\n".join(part for part in (f"# {self.title}", table, bullets(self.notes)) if part) + "\n"

    def comma_separated(self) -> str:
        """The unformatted values as CSV (RFC 4180); None is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(column.name for column in self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def latex(self) -> str:
        """A LaTeX `table` for booktabs; the notes are comments below it."""
        heads = [column.name for column in self.columns]
        return booktabs(self._sides, heads, [self.texts()], self.title, self.name, self.notes)


COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C564B", "#000000")
"""Okabe & Ito 2008 with brown for yellow: distinguishable with every kind of colour vision; markers and dashes help."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (8, 2)), (0, (1, 2)))
PANEL_INCHES, DOTS_PER_INCH, ACROSS = (3.2, 2.5), 200, 4


@dataclass(frozen=True)
class Line:
    """A line of a panel; lines with the same label have the same colour in every panel.

    Attributes:
        label: its label in the legend.
        y: one value per layer, from layer 0, or per value of x.
        error: half the length of the error bar at each value, or None.
        is_reference: True for a reference line, drawn thin and grey, without markers.
        x: where its values are, on a logarithmic axis; empty for layers. Its errors are then drawn as a band.
    """

    label: str
    y: tuple[float, ...]
    error: tuple[float, ...] | None = None
    is_reference: bool = False
    x: tuple[int, ...] = ()


@dataclass(frozen=True)
class Panel:
    """One set of axes over layers, or over the lines' x; `y_range` None fits the range to the lines."""

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
    lines = [line for row in rows for panel in row for line in panel.lines]
    coloured = list(dict.fromkeys(line.label for line in lines if not line.is_reference))
    # Without pyplot, a figure needs no display and leaves no global state; equal data give equal bytes.
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "meltpoint", "svg.fonttype": "path", "font.size": 8}):
        figure = Figure(figsize=(width * columns, height * len(rows) + 0.3), layout="constrained")
        FigureCanvasAgg(figure)
        places = figure.subplots(len(rows), columns, squeeze=False)
        handles: dict[str, Any] = {}
        for row, across in zip(rows, places, strict=True):
            for panel, axes in zip_longest(row, across):
                if panel is None:
                    axes.set_axis_off()
                    continue
                _draw_panel(panel, axes, coloured)
                shown, names = axes.get_legend_handles_labels()
                handles |= dict(zip(names, shown, strict=True))
        labels = list(dict.fromkeys(line.label for line in lines))
        across_legend = min(4, 2 * columns)
        figure.legend([handles[label] for label in labels], labels, loc="outside lower center", ncols=across_legend,
                      frameon=False)  # fmt: skip
        file = io.BytesIO()
        figure.savefig(file, format=form, dpi=DOTS_PER_INCH, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()


def _draw_panel(panel: Panel, axes: Any, labels: Sequence[str]) -> None:
    from matplotlib.ticker import MaxNLocator, NullLocator

    axes.set_title(panel.title)
    axes.set_xlabel(panel.x_name)
    axes.set_ylabel(panel.y_name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    sizes = sorted({size for line in panel.lines for size in line.x})
    if sizes:
        axes.set_xscale("log")
        axes.set_xticks(sizes, [counted(size) for size in sizes])
        axes.xaxis.set_minor_locator(NullLocator())
    if panel.y_range is not None:
        axes.set_ylim(panel.y_range)
    axes.grid(visible=True, linewidth=0.4, color="0.88")
    axes.spines[["top", "right"]].set_visible(False)
    for line in panel.lines:
        places = line.x or range(len(line.y))
        if line.is_reference:
            axes.plot(places, line.y, color="0.45", linewidth=0.9, linestyle=(0, (1, 1)), label=line.label)
            continue
        number = labels.index(line.label) % len(COLOURS)
        if line.x and line.error is not None:
            low, high = ([y + side * e for y, e in zip(line.y, line.error, strict=True)] for side in (-1, 1))
            axes.fill_between(line.x, low, high, color=COLOURS[number], alpha=0.15, linewidth=0)
        axes.errorbar(
            places, line.y, yerr=None if line.x else line.error, label=line.label, color=COLOURS[number],
            linewidth=1.3, markersize=3.5, marker=MARKERS[number], linestyle=DASHES[number], capsize=2, elinewidth=0.8,
        )  # fmt: skip
