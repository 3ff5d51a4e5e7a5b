"""A table of an analysis, as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from meltpoint.reports.formats import NOTHING
from meltpoint.reports.latex import booktabs, latex_text

Value = str | float | int | None


def plain(value: Value) -> str:
    """A value as it is; nothing as a dash."""
    return NOTHING if value is None else str(value)


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        text: how people read a value; a CSV has the value itself.
        is_figure: whether it is set to the right.
    """

    name: str
    text: Callable[[Value], str] = plain
    is_figure: bool = False


def figures(name: str, form: str) -> Column:
    """A column of numbers, written by a format such as `.3f`, with a typographic minus."""

    def text(value: Value) -> str:
        return NOTHING if value is None else format(value, form).replace("-", "−")

    return Column(name, text, is_figure=True)


def points(name: str, form: str = ".1f") -> Column:
    """A column of fractions, written ×100."""

    def text(value: Value) -> str:
        return NOTHING if value is None else format(100 * float(value), form).replace("-", "−")

    return Column(name, text, is_figure=True)


@dataclass(frozen=True)
class Table:
    """Rows under columns.

    Attributes:
        name: its file's name, without an ending.
        title: what it shows, one line.
        notes: what its reader must know, a line each.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), f"{self.name}: a row of another width"

    def texts(self) -> list[list[str]]:
        """Every row as people read it."""
        return [[own.text(value) for own, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def markdown(self) -> str:
        """A title, the table, and the notes as a list."""
        heads = [own.name for own in self.columns]
        rules = ["---:" if own.is_figure else "---" for own in self.columns]
        lines = [_bars(row) for row in ([_cell(text) for text in row] for row in (heads, *self.texts()))]
        notes = [f"- {' '.join(note.split())}" for note in self.notes]
        parts = [f"# {self.title}", "\n".join([lines[0], _bars(rules), *lines[1:]]), "\n".join(notes)]
        return "\n\n".join(part for part in parts if part) + "\n"

    def comma_separated(self) -> str:
        """The values themselves, in full precision; nothing is empty. Quoting as in RFC 4180."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(own.name for own in self.columns)
        writer.writerows(self.rows)
        return text.getvalue()

    def latex(self) -> str:
        """A `table` for booktabs; the notes are comments below it."""
        sides = "".join("r" if own.is_figure else "l" for own in self.columns)
        heads = [latex_text(own.name) for own in self.columns]
        rows = [[latex_text(text) for text in row] for row in self.texts()]
        return booktabs(sides, heads, [rows], self.title, self.name, self.notes)


def _bars(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _cell(text: str) -> str:
    """Text that cannot break a Markdown row."""
    return " ".join(text.split()).replace("|", "\\|")
