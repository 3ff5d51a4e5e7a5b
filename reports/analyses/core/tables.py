"""Tables of the analyses, written as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from meltpoint.reports.formats import booktabs, latex_text, markdown_text
from meltpoint.sweeps.results.cost import NOTHING
from meltpoint.tasks.core.scoring import difference_text, in_points, score_text

Value = str | float | int | None


class Score(float):
    """A score, or a difference of scores, with its metric: errors are shown in the unit of their task's scores.

    Args:
        value: as it is recorded: a fraction, a correlation or an error.
    """

    metric: str

    def __new__(cls, value: float, metric: str) -> Score:
        """The number with its metric."""
        made = super().__new__(cls, value)
        made.metric = metric
        return made

    @classmethod
    def each(cls, values: Iterable[float | None], metric: str) -> tuple[Score | None, ...]:
        """Scores of one metric; what is None stays so."""
        return tuple(None if value is None else cls(value, metric) for value in values)


def plain(value: Value) -> str:
    """A value as text; None is a dash."""
    return NOTHING if value is None else str(value)


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        text: formats a value for Markdown and LaTeX; CSV has the unformatted value.
        is_figure: True to align right.
    """

    name: str
    text: Callable[[Value], str] = plain
    is_figure: bool = False


def figures(name: str, form: str) -> Column:
    """A column of numbers, formatted by a format such as `.3f`, with a typographic minus."""

    def text(value: Value) -> str:
        return NOTHING if value is None else format(value, form).replace("-", "−")

    return Column(name, text, is_figure=True)


def points(name: str, form: str = ".1f") -> Column:
    """A column of fractions, shown ×100, and of `Score`s, shown as their metrics are."""

    def text(value: Value) -> str:
        if value is None:
            return NOTHING
        if isinstance(value, Score) and not in_points(value.metric):
            return difference_text(value, value.metric) if form.startswith("+") else score_text(value, value.metric)
        return format(100 * float(value), form).replace("-", "−")

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
        return [[column.text(value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def markdown(self) -> str:
        """The title, the table, and the notes as a list, in Markdown."""
        heads = [column.name for column in self.columns]
        rules = ["---:" if column.is_figure else "---" for column in self.columns]
        lines = [_bars(row) for row in ([_cell(text) for text in row] for row in (heads, *self.texts()))]
        notes = [f"- {markdown_text(note)}" for note in self.notes]
        parts = [f"# {self.title}", "\n".join([lines[0], _bars(rules), *lines[1:]]), "\n".join(notes)]
        return "\n\n".join(part for part in parts if part) + "\n"

    def comma_separated(self) -> str:
        """The unformatted values as CSV (RFC 4180); None is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(column.name for column in self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def latex(self) -> str:
        """A LaTeX `table` for booktabs; the notes are comments below it."""
        sides = "".join("r" if column.is_figure else "l" for column in self.columns)
        heads = [latex_text(column.name) for column in self.columns]
        rows = [[latex_text(text) for text in row] for row in self.texts()]
        return booktabs(sides, heads, [rows], self.title, self.name, self.notes)


def _bars(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _cell(text: str) -> str:
    """Text that is safe in a row of a Markdown table."""
    return markdown_text(text).replace("|", "\\|")
