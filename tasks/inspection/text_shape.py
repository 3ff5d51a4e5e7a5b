"""The shape of a text file: its encoding, and the delimiter, quotes and header of a table."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

from meltpoint.tasks.core.streams import is_in_quotes
from meltpoint.tasks.inspection.names import LABEL_NAMES, TEXT_NAMES

Item = TypeVar("Item")

SAMPLE_ROWS = 500
"""The rows that the shape is guessed from."""
DELIMITERS = ("\t", ",", ";", "|")
MOST_WIDTHS = 3
"""The most different numbers of cells of a tsv file whose rows have further cells."""
LEAST_CONSISTENT = 0.95
"""The least part of rows with as many cells as most have, for a table."""


@dataclass(frozen=True)
class TableShape:
    """The shape of a table, and its first rows without the header.

    Attributes:
        delimiter: the character between two cells.
        is_quoted: True if cells are in quotes.
        has_header: True if the first line names the columns.
        names: the columns' names; the numbers of those without a name, or with one that another has too.
        rows: rows from the whole file.
        widths: the numbers of cells of the other rows.
        named_twice: the first name that several columns have, or "".
    """

    delimiter: str
    is_quoted: bool
    has_header: bool
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    widths: tuple[int, ...] = ()
    named_twice: str = ""


def encoding_of(data: bytes) -> str:
    """The encoding of a file's bytes: UTF-8 if they are, UTF-16 by its mark, else Windows' Latin letters."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    for encoding in ("utf-8", "cp1252"):
        try:
            data.decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return "latin-1"


def table_shape(text: str) -> TableShape | None:
    """The shape of a text as a table; None if no delimiter makes one of it."""
    shapes = [
        shape
        for delimiter in DELIMITERS
        for is_quoted in (True, False)
        if (shape := _shape(text, delimiter, is_quoted)) is not None
    ]
    # The first of the delimiters that makes a table; with quotes where they are closed.
    best = min(shapes, key=lambda shape: (DELIMITERS.index(shape.delimiter), not shape.is_quoted), default=None)
    return _whole(text, _with_header(best)) if best else None


def spread(items: Sequence[Item], count: int = SAMPLE_ROWS) -> Sequence[Item]:
    """The first items of a sequence, and some of its whole: a file may be sorted by class, or alternate."""
    half = count // 2
    return [*items[:half], *items[half :: max(1, len(items) // half) | 1]]


def _whole(text: str, shape: TableShape) -> TableShape:
    """The shape with rows from the whole file, if the rest of it is of this shape too."""
    rows = _quoted_rows(text, shape.delimiter, None) if shape.is_quoted else _plain_rows(text, shape.delimiter, None)
    widths = Counter(map(len, rows))
    others = tuple(sorted(width for width in widths if width != len(shape.names)))
    kept = [tuple(row) for row in rows[int(shape.has_header) :] if len(row) == len(shape.names)]
    if not kept:
        return shape
    is_ragged = others and min(others) > len(shape.names) and not shape.has_header
    return replace(shape, rows=tuple(spread(kept)), widths=others if is_ragged else ())


def _shape(text: str, delimiter: str, is_quoted: bool) -> TableShape | None:
    rows = _quoted_rows(text, delimiter) if is_quoted else _plain_rows(text, delimiter)
    if not rows:
        return None
    width, count = Counter(map(len, rows)).most_common(1)[0]
    # Rows of a tsv file may have some further cells (STS-B's have two).
    is_ragged = delimiter == "\t" and min(map(len, rows)) == width and len(set(map(len, rows))) <= MOST_WIDTHS
    if width < 2 or (count < LEAST_CONSISTENT * len(rows) and not is_ragged):
        return None
    names = tuple(str(number) for number in range(width))
    return TableShape(delimiter, is_quoted, False, names, tuple(tuple(row) for row in rows if len(row) == width))


def _quoted_rows(text: str, delimiter: str, most: int | None = SAMPLE_ROWS) -> list[list[str]]:
    """The first rows, read with quotes; none if quotes are left open, or hold only some cells between tabs.

    A quote before a word of a tsv file is a quote of the text, and two of them far apart would swallow rows.
    """
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        rows = [row for row in islice(reader, most) if row]
    except csv.Error:
        return []
    plain = _plain_rows(text, delimiter)
    columns = zip(*(plain[1:] or plain), strict=False)  # names may be without quotes
    if delimiter == "\t" and not any(all(map(is_in_quotes, column)) for column in columns):
        return []
    return rows


def _plain_rows(text: str, delimiter: str, most: int | None = SAMPLE_ROWS) -> list[list[str]]:
    lines = text.split("\n") if most is None else text.split("\n", most)[:most]
    return [line.removesuffix("\r").split(delimiter) for line in lines if line.strip()]


def _with_header(shape: TableShape) -> TableShape:
    first, rows = shape.rows[0], shape.rows[1:]
    if not rows or not _is_header(first, rows):
        return shape
    counts = Counter(filter(None, first))
    names = tuple(name if counts[name] == 1 else str(number) for number, name in enumerate(first))
    return replace(
        shape, has_header=True, names=names, rows=rows, named_twice=next((n for n in counts if counts[n] > 1), "")
    )


def _is_header(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """True if the first row looks like names: known ones, or words where the column below has only numbers."""
    names = [cell.strip("\ufeff \t").lower() for cell in first]
    if any(len(name) > 60 or is_number(name) for name in names):
        return False
    if {re.sub(r"\d+$", "", name) for name in names} & {*LABEL_NAMES, *TEXT_NAMES}:
        return True
    columns = list(zip(*rows, strict=True))
    if any(not name and not _may_lack_name(column) for name, column in zip(names, columns, strict=True)):
        return False
    if any(name and all(map(is_number, column)) for name, column in zip(names, columns, strict=True)):
        return True
    # A column of classes repeats its values; the name of the column is none of them.
    repeats = [set(column) for column in columns if len(set(column)) <= len(column) / 2]
    is_short = max(len(name.split()) for name in names) <= 3
    return (
        is_short
        and all(len(column) >= 1 for column in columns)
        and any(first[number] not in set(column) for number, column in enumerate(columns) if set(column) in repeats)
    )


def _may_lack_name(column: Sequence[str]) -> bool:
    """True for a column of row numbers, which pandas gives no name, and for an empty one."""
    return not any(column) or (all(map(str.isdecimal, column)) and len(set(column)) == len(column))


def is_number(text: str) -> bool:
    """True for a decimal number."""
    return bool(re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text.strip()))
