"""Tables and lines that fit the console's width; the building blocks of `screen`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meltpoint.reports.formats import QUOTED

NAME_WIDTH = 11
"""The width to which names are wrapped in a narrow table: about that of `85.1 ± 0.3`."""

UNLIMITED = 10_000

Item = TypeVar("Item")


def stacked(name: str, width: int = NAME_WIDTH, after: str = "_+:-") -> str:
    """A name wrapped to `width` characters, with breaks only after some characters, the last of which is `-`."""
    lines = [""]
    for part in re.split(f"(?<=[{after}])", name):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


@dataclass(frozen=True)
class ScreenColumn(Generic[Item]):
    """A column of a table of items.

    Attributes:
        text: item → the text of its cell.
        narrow: shortens that text in a table that would be too wide.
        is_figure: True to align right.
        is_whole: True if its lines are never wrapped; figures never are.
    """

    heading: str
    text: Callable[[Item], str]
    narrow: Callable[[str], str] = stacked
    is_figure: bool = False
    is_whole: bool = False


def new_table(heading: str = "") -> Table:
    """An empty table without vertical borders; its heading is left-aligned."""
    title = Text(heading, style="bold") if heading else None
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)


def width_of(table: Table, console: Console) -> int:
    """The width of a table if it is not wrapped."""
    return Measurement.get(console, console.options.update(width=UNLIMITED), table).maximum


def say(console: Console, text: str, style: str = "") -> None:
    """Print a line of text without markup, wrapped at the console's width."""
    console.print(Text(text, style=style), highlight=False)


def say_lines(lines: Iterable[str], console: Console) -> None:
    """Print lines: whole to a pipe, on a terminal wrapped between words, below their own beginning."""
    for line in lines:
        if console.is_terminal:
            indent = len(line) - len(line.lstrip())
            console.print(Padding(Text(line.strip()), (0, 0, 0, indent)), highlight=False)
        else:
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def show_groups(
    items: Iterable[Item], group: Callable[[Item], str], columns: Sequence[ScreenColumn[Item]], console: Console
) -> None:
    """Print one table per group of consecutive items; names are wrapped if a table would be too wide."""
    for heading, members in groupby(items, group):
        rows = list(members)
        table = _items_table(heading, rows, columns, narrow=False)
        if width_of(table, console) > console.width:
            table = _items_table(heading, rows, columns, narrow=True)
        console.print(table)


def _items_table(heading: str, items: Sequence[Item], columns: Sequence[ScreenColumn[Item]], narrow: bool) -> Table:
    table = new_table(heading)
    for column in columns:
        whole = column.is_figure or column.is_whole
        table.add_column(
            column.heading, justify="right" if column.is_figure else "left", no_wrap=whole, overflow="fold"
        )
    for item in items:
        texts = [(column, column.text(item)) for column in columns]
        table.add_row(*(Text(column.narrow(text) if narrow else text) for column, text in texts))
    return table


def on_two_lines(text: str) -> str:
    """A score with its split on a line above it, and its interval on a line below."""
    for where, broken in (("dev ", "dev\n"), ("test ", "test\n"), (f" {QUOTED}", f"\n{QUOTED}"), (" [", "\n[")):
        text = text.replace(where, broken)
    return text
