"""Rows of a user's files in any format: records whose cells have the names of the task's columns."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meltpoint.tasks.core.files import parse_json, regular
from meltpoint.tasks.core.kinds import GROUP, LABEL, TAGS, WORDS
from meltpoint.tasks.core.readers import (
    Record,
    data_bytes,
    decoded,
    named_twice,
    no_column,
    position_of,
    read_lines,
    read_table,
    shown,
)
from meltpoint.tasks.core.user_layout import TABLES, Layout

if TYPE_CHECKING:
    import pyarrow


Row = Mapping[str, object]
"""Column → value."""

BATCH_ROWS = 10_000
"""The number of rows that become Python objects at a time."""


def parquet_rows(path: Path, columns: Sequence[str] | None) -> Iterator[tuple[int, Row]]:
    """The rows of a parquet file: (row number from 1, column → value).

    Args:
        path: the file.
        columns: the columns to read, `a.b` for a nested field of `a`; None for all.

    Raises:
        ValueError: the file is missing, broken or empty, or lacks a column.
    """
    # Imported here, since only these files need it.
    import pyarrow
    from pyarrow import parquet

    try:
        names = parquet.read_schema(regular(path)).names
        table = parquet.read_table(path, columns=_roots(path, columns, names))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing. Put the file there, or correct its name in the task file.") from None
    except (OSError, pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a readable parquet file ({error}). Write it again.") from None
    yield from _table_rows(path, table)


def _table_rows(path: Path, table: pyarrow.Table) -> Iterator[tuple[int, Row]]:
    if not table.num_rows:
        raise ValueError(f"{path} is empty. Replace it with the complete file.")
    names = class_names(table.schema.metadata)
    number = 0
    for batch in table.to_batches(BATCH_ROWS):
        try:
            rows = batch.to_pylist()
        except (ValueError, OverflowError) as error:  # a text that is not UTF-8, a date outside Python's range
            where = f"one of the rows {number + 1} to {number + batch.num_rows}"
            raise ValueError(f"{path}, {where}: a value cannot be read ({error}). Write it again.") from None
        for row in rows:
            number += 1
            yield number, with_class_names(row, names) if names else row


def _roots(path: Path, columns: Sequence[str] | None, names: Sequence[str]) -> list[str] | None:
    """The top-level columns of `columns`, without duplicates: a nested field is in the column before its first dot."""
    check_names(path, names)
    if columns is None:
        return None
    roots = []
    for column in columns:
        root = next((name for name in (column, column.partition(".")[0]) if name in names), None)
        if root is None:
            raise no_column(path, 1, column, names)
        roots.append(root)
    return list(dict.fromkeys(roots))


def check_names(path: Path, names: Sequence[str]) -> None:
    """Refuse duplicate column names.

    Raises:
        ValueError: two columns have the same name.
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise named_twice(str(path), twice)


def class_names(metadata: Mapping[bytes, bytes] | None) -> dict[str, list[str]]:
    """Column → class names, as `datasets` writes them into a schema's metadata; {} without them."""
    try:
        features = parse_json((metadata or {}).get(b"huggingface", b"{}"))["info"]["features"]
        inner = {name: feature.get("feature", feature) for name, feature in features.items()}
        return {name: list(feature["names"]) for name, feature in inner.items() if feature.get("_type") == "ClassLabel"}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def with_class_names(row: Row, names: Mapping[str, Sequence[str]]) -> Row:
    """A row with names instead of class numbers in columns that have class names."""
    return {key: _class_name(value, names[key]) if key in names else value for key, value in row.items()}


def _class_name(value: object, names: Sequence[str]) -> object:
    if isinstance(value, list):
        return [_class_name(part, names) for part in value]
    return ClassName(value, names[value]) if isinstance(value, int) and 0 <= value < len(names) else value


class ClassName(str):
    """The name of a class that the file stores as a number.

    Attributes:
        number: the number as text; it identifies the class if a task file has no label of that name.
    """

    number: str

    def __new__(cls, number: int, name: str) -> ClassName:
        """The name, with its number."""
        made = super().__new__(cls, name)
        made.number = str(number)
        return made


SPLIT = "split"
"""The name of the cell with the split of a row."""


def cells_of(key: str, layout: Layout) -> dict[str, str]:
    """The names of a key's cells → their columns; a text of several columns has a cell for each: `text: title`."""
    columns = layout.named.get(key, (key,))
    return {key: columns[0]} if len(columns) == 1 else {f"{key}: {column}": column for column in columns}


def cell_names(layout: Layout) -> dict[str, str]:
    """The name of each cell of a record → its column in the file."""
    named = {cell: column for key in layout.named for cell, column in cells_of(key, layout).items()}
    return named | ({SPLIT: layout.split_column} if layout.split_column else {})


def read_records(path: Path, layout: Layout) -> Iterable[Record]:
    """The rows of one file.

    Raises:
        ValueError: the file is missing or broken, or lacks a column.
    """
    names = cell_names(layout)
    if layout.format in TABLES:
        return (_renamed(row, names) for row in _table(path, layout))
    if layout.format == "lines":
        return _matches(path, layout, names)
    if layout.format == "folders":
        return _text_files(path, layout)
    if layout.format == "jsonl":
        rows = json_rows(path, enumerate(read_lines(path, encoding=layout.encoding), 1))
    else:
        rows = parquet_rows(path, list(names.values()))
    return (as_record(path, line, row, names, layout) for line, row in rows)


def _table(path: Path, layout: Layout) -> Iterator[Record]:
    is_csv = layout.format == "csv"
    return read_table(
        path, None, header=layout.header, separator=layout.delimiter or ("," if is_csv else "\t"),
        quoted=is_csv if layout.quoting is None else layout.quoting, encoding=layout.encoding,
    )  # fmt: skip


def _renamed(row: Record, names: Mapping[str, str]) -> Record:
    positions = {name: _position(row, column) for name, column in names.items()}
    return Record(row.path, row.line, row.fields, positions)


def _position(row: Record, column: str) -> int:
    """The index of a column: by its name, or by its number if no column has that name."""
    if column not in row.positions and column.isdecimal() and int(column) < len(row.fields):
        return int(column)
    return position_of(row.path, column, row.positions)


def _matches(path: Path, layout: Layout, names: Mapping[str, str]) -> Iterator[Record]:
    pattern = re.compile(layout.pattern or "")
    positions = {name: number for number, name in enumerate(names)}
    for number, line in enumerate(read_lines(path, encoding=layout.encoding), 1):
        match = pattern.fullmatch(line)
        if layout.empty == "skip" and not line.strip():
            yield Record(path, number, [""] * len(names), positions)
        elif match is None:
            fault = f"{line[:60]!r} does not match the pattern. Correct the line or the pattern."
            raise ValueError(f"{path}, line {number}: {fault}")
        else:
            yield Record(path, number, [match[column] or "" for column in names.values()], positions)


def _text_files(folder: Path, layout: Layout) -> Iterator[Record]:
    """The files of a folder's subfolders: the subfolder's name is the label, the file's contents are the text."""
    try:
        classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        fault = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be listed ({error.strerror})"
        raise ValueError(f"{folder} {fault}. Put the folder there, or correct its name in the task file.") from None
    if not classes:
        raise ValueError(f"{folder} has no subfolders. Write one folder of texts per label: {folder.name}/LABEL/*.txt.")
    positions = {"text": 0, LABEL: 1}
    for place in classes:
        if place.name in layout.skip_labels:
            continue
        for path in sorted(place.iterdir()):
            if path.is_file() and not path.name.startswith("."):
                text = decoded(path, data_bytes(path), layout.encoding).strip()
                yield Record(path, 1, [text, place.name], positions)


def json_rows(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
    """The objects of a jsonl file's numbered lines; blank lines are left out.

    Raises:
        ValueError: a line is not a JSON object, or has a key twice; the file and the line are named.
    """
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = parse_json(line, unique_keys=True)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}. Write one object of plain fields per line.") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: not a JSON object. Write one object per line.")
        yield number, row


def as_record(path: Path, line: int, row: Row, names: Mapping[str, str], layout: Layout) -> Record:
    """The record of a row with named columns; `names` comes from `cell_names`."""
    takes_null = layout.empty != "refuse"
    cells: list[str] = []
    for name, column in names.items():
        if name in (WORDS, TAGS):
            cells.append(_listed(path, line, row, column, takes_numbers=name == TAGS, takes_null=takes_null))
        elif name == LABEL and layout.of_kind.has_labels:
            cells.append(_labels(path, line, row, column))
        else:
            is_label, may_lack = name == LABEL, takes_null or name == GROUP
            cells.append(cell_text(path, line, row, column, takes_null=may_lack, is_label=is_label))
    return Record(path, line, cells, {name: position for position, name in enumerate(names)})


def value_at(path: Path, line: int, row: Row, column: str) -> object:
    """The value of a column, or of a nested field: `reviews.0.body`.

    Raises:
        ValueError: the row has none.
    """
    if column in row:
        return row[column]
    value: object = row
    for part in column.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise no_column(path, line, column, row, "Name one of these, or add it to this row; null if it has none.")
    return value


def cell_text(
    path: Path, line: int, row: Row, column: str, *, takes_null: bool = False, is_label: bool = False
) -> str:  # fmt: skip
    """A scalar in the spelling of the task file: `true`, `1`, `0.5`, or the text itself.

    Args:
        takes_null: True if a missing value counts as an empty text.
        is_label: True if a missing value counts as the label "" or "nan", which the task file may skip or refuse.
    """
    value = value_at(path, line, row, column)
    text = scalar_text(value)
    if text is not None:
        return text
    if is_label and isinstance(value, float):
        return str(value)
    if (value is None or value != value) and (takes_null or is_label):
        return ""
    raise ValueError(
        f"{path}, line {line}, field '{column}': {reprlib.repr(value)} is neither text nor a number. Correct the row."
    )


def scalar_text(value: object) -> str | None:
    """The text of a scalar; None for null, numbers that are not finite, lists and mappings."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return shown(value) if math.isfinite(value) else None
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else None


class ListCell(str):
    """A cell that is a list: of labels, words or tags.

    Attributes:
        parts: its items as spelled.
    """

    parts: tuple[str, ...]

    def __new__(cls, parts: Sequence[str]) -> ListCell:
        """The items as a text, with commas between them."""
        made = super().__new__(cls, ", ".join(parts))
        made.parts = tuple(parts)
        return made


def parts_of(record: Record, name: str) -> tuple[str, ...]:
    """The items of a cell that is a list."""
    cell = record.cell(name)
    assert isinstance(cell, ListCell)
    return cell.parts


def _labels(path: Path, line: int, row: Row, column: str) -> str:
    """A list of labels; empty for null; or a text with several labels, as in tables."""
    value = value_at(path, line, row, column)
    if value is None:
        return ListCell(())
    if not isinstance(value, list):
        return cell_text(path, line, row, column)
    return ListCell([cell_text(path, line, {column: part}, column) for part in value])


def _listed(path: Path, line: int, row: Row, column: str, *, takes_numbers: bool, takes_null: bool) -> ListCell:
    """A list of words, or of tags, which may be numbers; with `takes_null`, it may be empty or null."""
    value = value_at(path, line, row, column)
    parts: list[Any] = value if isinstance(value, list) else [] if value is None and takes_null else [None]
    if takes_numbers:
        parts = [str(part) if type(part) is int else part for part in parts]
    if not all(isinstance(part, str) and part for part in parts) or not (parts or takes_null):
        raise ValueError(
            f"{path}, line {line}, field '{column}': not a list of words. Write a non-empty list of texts."
        )
    return ListCell(parts)
