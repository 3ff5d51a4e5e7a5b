"""The shape of a text file: its encoding, and the delimiter, quotes and header of a table."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from meltpoint.tasks.inspection.names import LABEL_NAMES, TEXT_NAMES

SAMPLE_ROWS = 500
"""The rows that the shape is guessed from."""
DELIMITERS = ("\t", ",", ";", "|")
LEAST_CONSISTENT = 0.95
"""The least part of rows with as many cells as most have, for a table."""


@dataclass(frozen=True)
class TableShape:
    """The shape of a table, and its first rows without the header.

    Attributes:
        delimiter: the character between two cells.
        is_quoted: True if cells are in quotes.
        has_header: True if the first line names the columns.
        names: the columns' names, or their numbers.
        rows: the first rows.
    """

    delimiter: str
    is_quoted: bool
    has_header: bool
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


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
    return best and _with_header(best)


def _shape(text: str, delimiter: str, is_quoted: bool) -> TableShape | None:
    rows = _quoted_rows(text, delimiter) if is_quoted else _plain_rows(text, delimiter)
    if not rows:
        return None
    width, count = Counter(map(len, rows)).most_common(1)[0]
    if width < 2 or count < LEAST_CONSISTENT * len(rows):
        return None
    names = tuple(str(number) for number in range(width))
    return TableShape(delimiter, is_quoted, False, names, tuple(tuple(row) for row in rows if len(row) == width))


def _quoted_rows(text: str, delimiter: str) -> list[list[str]]:
    """The first rows, read with quotes; none if quotes are left open, or hold only some cells between tabs.

    A quote before a word of a tsv file is a quote of the text, and two of them far apart would swallow rows.
    """
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        rows = [row for row in islice(reader, SAMPLE_ROWS) if row]
    except csv.Error:
        return []
    columns = zip(*_plain_rows(text, delimiter), strict=False)
    if delimiter == "\t" and not any(all(map(_is_in_quotes, column)) for column in columns):
        return []
    return rows


def _is_in_quotes(cell: str) -> bool:
    return len(cell) > 1 and cell.startswith('"') and cell.endswith('"')


def _plain_rows(text: str, delimiter: str) -> list[list[str]]:
    lines = text.split("\n", SAMPLE_ROWS)[:SAMPLE_ROWS]
    return [line.removesuffix("\r").split(delimiter) for line in lines if line.strip()]


def _with_header(shape: TableShape) -> TableShape:
    first, rows = shape.rows[0], shape.rows[1:]
    if not rows or not _is_header(first, rows):
        return shape
    return replace(shape, has_header=True, names=first, rows=rows)


def _is_header(first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """True if the first row looks like names: known ones, or words where the column below has only numbers."""
    names = [cell.strip().lower() for cell in first]
    if len(set(names)) < len(names) or any(len(name) > 60 or not name for name in names):
        return False
    if any(is_number(name) for name in names):
        return False
    if {re.sub(r"\d+$", "", name) for name in names} & {*LABEL_NAMES, *TEXT_NAMES}:
        return True
    columns = list(zip(*rows, strict=True))
    if any(all(map(is_number, column)) for column in columns):
        return True
    # A column of classes repeats its values; the name of the column is none of them.
    repeats = [set(column) for column in columns if len(set(column)) <= len(column) / 2]
    is_short = max(len(name.split()) for name in names) <= 3
    return (
        is_short
        and all(len(column) >= 1 for column in columns)
        and any(first[number] not in set(column) for number, column in enumerate(columns) if set(column) in repeats)
    )


def is_number(text: str) -> bool:
    """True for a decimal number."""
    return bool(re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text.strip()))
