"""The shape of a file of examples: its format, what the format needs, and its first rows by column."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from meltpoint.tasks.core.conll import SUFFIXES
from meltpoint.tasks.core.files import without_suffix
from meltpoint.tasks.core.parquet_files import Row, parquet_rows
from meltpoint.tasks.core.readers import csv_rows, data_bytes, is_in_quotes, records, text_of, with_line_feeds
from meltpoint.tasks.core.rows import json_rows
from meltpoint.tasks.inspection.roles import Roles
from meltpoint.tasks.inspection.text_shape import (
    TableShape,
    conll_shape,
    encoding_of,
    spread,
    table_shape,
)

MOST_ROWS = 20_000
"""The rows of a parquet file that a sample is taken from."""


@dataclass(frozen=True)
class FileShape:
    """The shape of one file.

    Attributes:
        format: a format of a task file.
        keys: the task file's keys that reading needs, such as `delimiter`.
        names: the names of its columns, or their numbers.
        rows: its first rows: column → text, list, or None.
        remarks: (key of a task file, a remark on the guess there).
        roles: the roles of its columns, if its shape shows them; otherwise None.
    """

    format: str
    keys: Mapping[str, object]
    names: tuple[str, ...] = ()
    rows: Sequence[Row] = ()
    remarks: tuple[tuple[str, str], ...] = ()
    roles: Roles | None = None


def shape_of(path: Path) -> FileShape:
    """The shape of a file.

    Raises:
        ValueError: it cannot be read, or its format is unknown.
    """
    if without_suffix(path).suffix.lower() == ".parquet":
        return _of_rows("parquet", spread(list(islice(parquet_rows(path, None), MOST_ROWS))))
    data = data_bytes(path)
    encoding = encoding_of(data)
    shape = _of_text(path, with_line_feeds(text_of(path, data, encoding)))
    if encoding == "utf-8":
        return shape
    remark = ("encoding", "the encoding is a guess: check the words with other letters than a to z")
    return replace(shape, keys={"encoding": encoding, **shape.keys}, remarks=(*shape.remarks, remark))


def _of_text(path: Path, text: str) -> FileShape:
    if text.lstrip()[:1] in "[{" and without_suffix(path).suffix.lower() in {".json", ".jsonl", ".ndjson"}:
        return _of_rows("jsonl", _json_rows(path, text))
    conll = conll_shape(text, is_named=without_suffix(path).suffix.lower() in SUFFIXES)
    if conll is not None:
        columns = {"words": conll.word_column, "tags": conll.tag_column}
        others = len({*range(conll.width)} - {conll.word_column, conll.tag_column % max(1, conll.width)})
        remark = (f"the tags could also be another column of 0 to {conll.width - 1}",) if others else ()
        return FileShape("conll", {}, roles=Roles(conll.kind, columns, "", remark, "", conll.scheme or ""))
    if (table := table_shape(text)) is not None:
        return _of_table(path, text, table)
    separator = {".csv": ",", ".tsv": "\t"}.get(without_suffix(path).suffix.lower())
    if separator is not None and (fault := _fault(path, text, separator)):
        raise ValueError(fault)
    raise ValueError(
        f"{path} is no table, JSON lines or tagged words. Write its task file by hand, for example with format: lines; "
        "see docs/tasks.md."
    )


def _of_table(path: Path, text: str, table: TableShape) -> FileShape:
    if len(table.rows) == 1 and not table.has_header and (fault := _fault(path, text, table.delimiter)):
        raise ValueError(fault)  # names alone
    form = "tsv" if table.delimiter == "\t" else "csv"
    keys: dict[str, object] = {} if table.delimiter in "\t," else {"delimiter": table.delimiter}
    remarks = []
    if not table.has_header:
        keys["header"] = False
    if table.is_quoted != (form == "csv"):
        keys["quoting"] = table.is_quoted or "none"
        has_quotes = any(is_in_quotes(cell) for row in table.rows for cell in row)
        if form == "csv" and has_quotes and (fault := _fault(path, text, table.delimiter)):
            remarks.append(("quoting", f"NOT YET RIGHT, cells keep their quotes: {fault}"))
    if table.named_twice:
        remarks.append(("columns", f"two columns are named '{table.named_twice}'; numbers, from 0, tell them apart"))
    rows = [dict(zip(table.names, row, strict=True)) for row in table.rows]
    return FileShape(form, keys, table.names, rows, tuple(remarks))


def _fault(path: Path, text: str, separator: str) -> str:
    """The reason why a text is not a table of cells (never quoted in a tsv); "" if it is one."""
    lines = enumerate(text.split("\n"), 1)
    plain = ((number, line.split(separator)) for number, line in lines)
    rows = plain if separator == "\t" else csv_rows(path, io.StringIO(text, newline=""), separator)
    try:
        for _ in records(path, rows, None, header=True, separator=separator):
            pass
    except ValueError as error:
        return str(error)
    return ""


def _json_rows(path: Path, text: str) -> Iterable[tuple[int, Row]]:
    if text.lstrip().startswith("["):
        raise ValueError(f"{path} is one JSON list. Write one object per line (JSON lines).")
    yield from json_rows(path, spread(list(enumerate(text.split("\n"), 1))))


def _of_rows(form: str, rows: Iterable[tuple[int, Row]]) -> FileShape:
    flat = [flattened(row) for _, row in rows]
    names = tuple(dict.fromkeys(name for row in flat for name in row))
    return FileShape(form, {}, names, flat)


def flattened(row: Row, prefix: str = "") -> dict[str, object]:
    """A row with its nested fields as columns: `meta.stars`, `reviews.0.body` (the first of a list of objects)."""
    flat: dict[str, object] = {}
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            flat |= flattened(value[0], f"{name}.0.")
        else:
            flat[name] = value
    return flat
