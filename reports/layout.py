"""Tables and lines that fit the console's width; the building blocks of `screen`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeGuard, TypeVar

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meltpoint.reports.formats import QUOTED, title
from meltpoint.tasks.core.wording import printable

NAME_WIDTH = 11
"""The width to which names are wrapped in a narrow table: about that of `85.1 ± 0.3`."""

MODE_WIDTH = 12
"""The same for a mode and its symbol: `and_finetune`."""

STEPS = 4
"""Layouts that a table tries: unbroken, names broken, modes and headings broken, durations broken."""

UNLIMITED = 10_000

Item = TypeVar("Item")


def stacked(name: str, width: int = NAME_WIDTH, after: str = "_+:-") -> str:
    """A name wrapped to `width` characters, with breaks only after the characters of `after`; `-` has to come last."""
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
        narrow: breaks that text into lines if the table would be too wide.
        further: break it further, in this order, while the table is still too wide.
        is_figure: True to align right.
    """

    heading: str
    text: Callable[[Item], str]
    narrow: Callable[[str], str] = stacked
    further: Sequence[Callable[[str], str]] = ()
    is_figure: bool = False

    def shown(self, item: Item, step: int) -> Text:
        """The text of an item's cell; the higher the step, the narrower."""
        steps: list[Callable[[str], str]] = [str, self.narrow, *self.further]
        return Text(steps[min(step, len(steps) - 1)](printable(self.text(item))))


def name_column(heading: str, name: Callable[[Item], str]) -> ScreenColumn[Item]:
    """A column of names; long ones are broken first, then all, wherever possible."""
    return ScreenColumn(heading, name, further=(lambda text: stacked(text, 1),))


def mode_column(mode: Callable[[Item], str]) -> ScreenColumn[Item]:
    """The column of the mode, whose name is broken last."""
    return ScreenColumn(
        "mode", lambda item: title(mode(item)), narrow=str, further=(lambda text: stacked(text, MODE_WIDTH),)
    )


def new_table(heading: str = "") -> Table:
    """An empty table without vertical borders; its heading is left-aligned."""
    title = Text(printable(heading), style="bold") if heading else None
    return Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True
    )


def width_of(table: Table, console: Console) -> int:
    """The width of a table if it is not wrapped."""
    return Measurement.get(console, console.options.update(width=UNLIMITED), table).maximum


def say(console: Console, text: str, style: str = "") -> None:
    """Print a line of text without markup, wrapped at the console's width."""
    console.print(Text(printable(text), style=style), highlight=False)


def say_lines(lines: Iterable[str], console: Console) -> None:
    """Print lines: unwrapped to a pipe; on a terminal, wrapped between words at their own indentation."""
    for line in lines:
        if console.is_terminal:
            indent = len(line) - len(line.lstrip())
            console.print(Padding(Text(printable(line.strip())), (0, 0, 0, indent)), highlight=False)
        else:
            console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def show_groups(
    items: Iterable[Item], group: Callable[[Item], str], columns: Sequence[ScreenColumn[Item]], console: Console
) -> None:
    """Print one table per group of consecutive items, as wide as fits; if no table fits, one paragraph per item."""
    for heading, members in groupby(items, group):
        rows = list(members)
        tables = (_items_table(heading, rows, columns, step) for step in range(STEPS))
        fitting = next((table for table in tables if width_of(table, console) <= console.width), None)
        if fitting is not None:
            console.print(fitting)
            continue
        say(console, heading, style="bold")
        for item in rows:
            _show_item(item, columns, console)


def _items_table(heading: str, items: Sequence[Item], columns: Sequence[ScreenColumn[Item]], step: int) -> Table:
    table = new_table(heading)
    for column in columns:
        name = column.heading.replace(" ", "\n") if step >= 2 else column.heading
        table.add_column(name, justify="right" if column.is_figure else "left", no_wrap=True)
    for item in items:
        table.add_row(*(column.shown(item, step) for column in columns))
    return table


def _show_item(item: Item, columns: Sequence[ScreenColumn[Item]], console: Console) -> None:
    """Print the first column as a heading and the others below it, each after its own heading."""
    first, *others = columns
    say(console, first.text(item), style="bold")
    facts = ", ".join(f"{column.heading} {text}" for column in others if (text := column.text(item)))
    console.print(Padding(Text(printable(facts)), (0, 0, 0, 2)), highlight=False)


def units_apart(text: str) -> str:
    """A duration with each unit on a line: `1 h` above `20 min`."""
    return re.sub(r"(?<=[a-z]) ", "\n", text)


def on_two_lines(text: str) -> str:
    """A score with its split on a line above it, and its interval on a line below."""
    for where, broken in (("dev ", "dev\n"), ("test ", "test\n"), (f" {QUOTED}", f"\n{QUOTED}"), (" [", "\n[")):
        text = text.replace(where, broken)
    return text


def show_rows(rows: Sequence[Mapping[str, object]], console: Console) -> None:
    """Print the rows of `list`: as a table if it fits, else as one paragraph per row."""
    keys = list(dict.fromkeys(key for row in rows for key in row if _value(row[key])))  # no empty column
    table = new_table()
    for key in keys:
        table.add_column(Text(key.replace("_", " ")), no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_value(row.get(key))) for key in keys))
    if width_of(table, console) <= console.width:
        console.print(table)
        return
    for row in rows:
        _show_paragraph(row, console)


def _show_paragraph(row: Mapping[str, object], console: Console) -> None:
    """Print the first value as a heading and the others below it with their keys."""
    (_, name), *others = row.items()
    say(console, stacked(_value(name), console.width, after="_+:./-"), style="bold")
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for key, value in others:
        text = "\n".join(value) if _is_phrases(value) else _value(value)
        if text:
            grid.add_row("", Text(key.replace("_", " ")), Text(text))
    console.print(grid)


def _is_phrases(value: object) -> TypeGuard[list[str]]:
    """True if a value is a list whose items are printed on separate lines."""
    return isinstance(value, list) and any(isinstance(item, str) and " " in item for item in value)


def _value(value: object) -> str:
    """A value of a row as one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_value(item) for item in value)
    return printable(" ".join(str(value).split()))
