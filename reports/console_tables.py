"""Tables and lines that fit the console's width; the building blocks of `screen`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import cast

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from meltpoint.tasks.core.wording import printable

UNLIMITED = 10_000
WIDTHS = ((UNLIMITED, UNLIMITED), (14, UNLIMITED), (14, 14), (11, 11))
"""The widths of the heads and of the values of a table, the first that fits: `★ 85.1 ± 0.3` takes 12."""


def stacked(name: str, width: int, after: str = "_+:-") -> str:
    """A name wrapped to `width` characters, with breaks only after the characters of `after`; `-` has to come last."""
    lines = [""]
    for part in re.split(f"(?<=[{after}])", name):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


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


def show_rows(
    rows: Sequence[Mapping[str, object]], console: Console, heading: str = "", figures: Collection[str] = ()
) -> None:  # fmt: skip
    """Print rows as a table if it fits, with broken names if it has a heading; else as one paragraph per row.

    Args:
        figures: the keys whose values are aligned right.
    """
    keys = list(dict.fromkeys(key for row in rows for key in row if _value(row[key])))  # no empty column
    for of_head, of_value in WIDTHS if heading else WIDTHS[:1]:
        table = new_table(heading)
        for key in keys:
            table.add_column(Text(_narrow(key, of_head)), no_wrap=True, justify="right" if key in figures else "left")
        for row in rows:
            table.add_row(*(Text(_narrow(_value(row.get(key)), of_value)) for key in keys))
        if width_of(table, console) <= console.width:
            console.print(table)
            return
    if heading:
        say(console, heading, style="bold")
    for row in rows:
        _show_paragraph(row, console)


def _narrow(text: str, width: int) -> str:
    """A text in lines: broken after commas, before a bracket and at the joints of names; as it is if it is narrow."""
    if len(text) <= width:
        return text
    return "\n".join(stacked(part, width) for part in re.split(r"(?<=,) (?![^\[]*\])| (?=[(\[])", text))


def _show_paragraph(row: Mapping[str, object], console: Console) -> None:
    """Print the first value as a heading and the others below it with their keys."""
    (_, name), *others = row.items()
    say(console, stacked(_value(name), console.width, after="_+:./-"), style="bold")
    grid = Table.grid(padding=(0, 2))
    grid.add_column()
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for key, value in others:
        is_phrases = isinstance(value, list) and any(isinstance(item, str) and " " in item for item in value)
        text = "\n".join(map(str, cast(list[object], value))) if is_phrases else _value(value)
        if text:
            grid.add_row("", Text(key.replace("_", " ")), Text(text))
    console.print(grid)


def _value(value: object) -> str:
    """A value of a row as one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_value(item) for item in value)
    return printable(" ".join(str(value).split()))
