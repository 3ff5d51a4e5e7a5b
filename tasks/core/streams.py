"""Streaming reader of large csv files, as strict as `readers` but without the whole text in memory."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from meltpoint.tasks.core.bounded import regular
from meltpoint.tasks.core.counts import some
from meltpoint.tasks.core.readers import Record, empty, not_utf8, unreadable


def stream_csv(path: Path, columns: Sequence[str]) -> Iterator[Record]:
    """Yield the rows of a csv file without a header, whose cells may be in double quotes (RFC 4180).

    Args:
        path: the file.
        columns: the names of the cells, in order.

    Raises:
        ValueError: the file cannot be read, has no rows, or a row is broken or has a wrong number of cells.
    """
    positions = {column: position for position, column in enumerate(columns)}
    reader = csv.reader(_lines(path), strict=True)
    has_rows = False
    try:
        for fields in reader:
            if len(fields) != len(columns):
                problem = f"{path}, line {reader.line_num}: {some(len(fields), 'field')}, not {len(columns)}."
                raise ValueError(f"{problem} Repair or remove the row.")
            has_rows = True
            yield Record(path, reader.line_num, fields, positions)
    except csv.Error as error:
        remedy = "Close every quote and double the ones inside a cell."
        raise ValueError(f"{path}, line {reader.line_num}: broken row ({error}). {remedy}") from None
    if not has_rows:
        raise empty(path)


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines with their line ends, decoded one by one; a byte order mark is dropped."""
    try:
        file = regular(path).open("rb")
    except OSError as error:
        raise unreadable(path, error) from None
    with file:
        start = 0
        for number, line in enumerate(file, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                mark = 3 if number == 1 and line.startswith(b"\xef\xbb\xbf") else 0
                place = error.start + mark
                raise not_utf8(path, number, start + place, line[place]) from None
            start += len(line)
