"""The shape of a file or folder of examples: its format, what the format needs, and its first rows by column."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from meltpoint.tasks.core.conll import SUFFIXES
from meltpoint.tasks.core.files import without_suffix
from meltpoint.tasks.core.readers import csv_rows, data_bytes, records, text_of, with_line_feeds
from meltpoint.tasks.core.rows import json_rows
from meltpoint.tasks.core.streams import Row, is_in_quotes, parquet_rows
from meltpoint.tasks.core.wording import some
from meltpoint.tasks.inspection.roles import Roles
from meltpoint.tasks.inspection.splits import Place
from meltpoint.tasks.inspection.text_shape import (
    TableShape,
    conll_shape,
    encoding_of,
    spread,
    table_shape,
)

PATTERNS = (
    r"__label__(?P<label>\S+) (?P<text>.+)",
    r"(?P<label>[A-Za-z]+):\S+ (?P<text>.+)",
    r"(?P<label>\S+) (?P<text>.+)",
)
"""Patterns of lines with a label: fastText's, TREC's coarse classes, and a first word that repeats (SST's 0 and 1)."""
MOST_ROWS = 20_000
"""The rows of a parquet file that a sample is taken from."""
MOST_LINE_LABELS = 50
"""The largest number of different first words that count as labels."""


@dataclass(frozen=True)
class FileShape:
    """The shape of one file or folder.

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
    remarks: tuple[tuple[str, str], ...] = field(default=())
    roles: Roles | None = None


def shape_of(place: Place) -> FileShape:
    """The shape of a file or folder.

    Raises:
        ValueError: it cannot be read, or its format is unknown.
    """
    path, suffix = place.path, without_suffix(place.path).suffix.lower()
    if suffix == ".parquet":
        return _of_rows("parquet", spread(list(islice(parquet_rows(path, None), MOST_ROWS))))
    if place.is_folder:
        files = [one for one in sorted(path.glob("*/*")) if one.is_file() and not one.name.startswith(".")]
        found = {encoding_of(data_bytes(one)): one for one in files}
        encoding = next((name for name in ("utf-16", "latin-1", "cp1252") if name in found), "utf-8")
        data, shape = data_bytes(found[encoding]), FileShape("folders", {}, roles=Roles("sentence_classification", {}))
    else:
        data = data_bytes(path)
        encoding = encoding_of(data)
        shape = _of_text(path, with_line_feeds(text_of(path, data, encoding)))
    if encoding == "utf-8":
        return shape
    remarks = (*shape.remarks, ("encoding", _doubt(data, encoding)))
    return replace(shape, keys={"encoding": encoding, **shape.keys}, remarks=remarks)


def _doubt(data: bytes, encoding: str) -> str:
    """A remark on an encoding that is a guess; most bytes of a damaged UTF-8 file still are UTF-8."""
    text = data.decode("utf-8", "replace")
    wrong = text.count("\ufffd")
    if sum(not character.isascii() for character in text) > 2 * wrong:
        return f"the file is UTF-8 except for {some(wrong, 'byte')}: it seems damaged; repair it, and remove encoding"
    words = dict.fromkeys(re.findall(r"\w*[^\W\x00-\x7f]\w*", data.decode(encoding, "replace")))
    return f"the encoding is a guess; are these words right? {', '.join(list(words)[:4])}"


def _of_text(path: Path, text: str) -> FileShape:
    if text.lstrip()[:1] in "[{" and without_suffix(path).suffix.lower() in {".json", ".jsonl", ".ndjson"}:
        return _of_rows("jsonl", _json_rows(path, text))
    conll = conll_shape(text, is_named=without_suffix(path).suffix.lower() in SUFFIXES)
    if conll is not None:
        columns = {"words": conll.word_column, "tags": conll.tag_column}
        others = len({*range(conll.width)} - {conll.word_column, conll.tag_column % max(1, conll.width)})
        remark = (f"the tags could also be another column of 0 to {conll.width - 1}",) if others else ()
        return FileShape("conll", {}, roles=Roles(conll.kind, columns, "", remark, "", conll.scheme or ""))
    pattern = _pattern(text, PATTERNS[:2])
    table = None if pattern else table_shape(text)
    if table is not None:
        return _of_table(path, text, table)
    separator = {".csv": ",", ".tsv": "\t"}.get(without_suffix(path).suffix.lower())
    if separator is not None and (fault := _fault(path, text, separator)):
        raise ValueError(fault)
    pattern = pattern or _pattern(text, PATTERNS[2:]) or "(?P<text>.+)"
    rows = [match.groupdict() for line in _lines(text) if (match := re.fullmatch(pattern, line))]
    return FileShape("lines", {"pattern": pattern}, tuple(rows[0]) if rows else (), rows)


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


def _lines(text: str) -> list[str]:
    return [line.removesuffix("\r") for line in spread(text.split("\n")) if line.strip()]


def _pattern(text: str, patterns: Sequence[str]) -> str | None:
    """The first pattern that all lines match, with few labels; a plain first word is a label only if it repeats."""
    lines = _lines(text)
    for pattern in patterns:
        matches = [re.fullmatch(pattern, line) for line in lines]
        labels = Counter(match["label"] for match in matches if match is not None)
        repeats = pattern != PATTERNS[-1] or len(labels) <= len(lines) / 2
        if all(matches) and 2 <= len(labels) <= MOST_LINE_LABELS and repeats:
            return pattern
    return None


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
