"""Rows of parquet files; numbers of classes become the classes' names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meltpoint.tasks.core.files import parse_json, regular
from meltpoint.tasks.core.readers import named_twice, no_column

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
