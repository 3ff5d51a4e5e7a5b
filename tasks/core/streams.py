"""Streaming readers of large files of UTF-8 text: the rows of `readers`, without the whole text in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from meltpoint.tasks.core.files import regular
from meltpoint.tasks.core.readers import (
    Record,
    bare_lines,
    csv_rows,
    data_bytes,
    decoded,
    null_character,
    records,
    unreadable,
    with_line_feeds,
)


def stream_table(path: Path, columns: Sequence[str], *, header: bool, separator: str | None = None) -> Iterator[Record]:
    """Yield the rows of a csv file, or of a file whose cells are separated by one character, without quotes.

    Args:
        path: the file.
        columns: with a header, the columns that it must have; without, the names of the cells, in order.
        header: True if the first line names the columns.
        separator: the character between two cells of a file without quotes; None for csv.

    Raises:
        ValueError: the file cannot be read, has no rows, lacks a column, or a row is broken or has a wrong number of
            cells.
    """
    if separator is None:
        return records(path, csv_rows(path, _pieces(path, "")), columns, header)
    rows = ((number, line.split(separator)) for number, line in enumerate(stream_lines(path), 1))
    return records(path, rows, columns, header, (), separator)


def stream_lines(path: Path) -> Iterator[str]:
    """Yield the lines that `read_lines` reads."""
    return bare_lines(path, _lines(path))


def _lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(_pieces(path, "\n"), 1):
        if number > 1 or line.endswith("\n"):
            yield line.removesuffix("\n")
        else:
            yield from with_line_feeds(line).removesuffix("\n").split("\n")


def _pieces(path: Path, newline: str) -> Iterator[str]:
    """Yield the pieces of a file with their ends, decoded; a byte order mark is dropped.

    Args:
        newline: as that of `open`: "" for all three kinds of ends, or the only one.
    """
    try:
        file = regular(path).open(encoding="utf-8-sig", newline=newline)
    except OSError as error:
        raise unreadable(path, error) from None
    with file:
        try:
            for number, piece in enumerate(file, 1):
                if "\0" in piece:
                    raise null_character(path, number)
                yield piece
        except UnicodeDecodeError:
            decoded(path, data_bytes(path))  # it names the line and the byte
            raise


def is_in_quotes(cell: str) -> bool:
    """True for a cell that begins and ends with a quote."""
    return len(cell) > 1 and cell.startswith('"') and cell.endswith('"')
