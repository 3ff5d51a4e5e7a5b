"""File formats of a user's task: tsv, csv, jsonl, parquet and conll, all read into the same examples."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meltpoint.tasks.core.bounded import parse_json
from meltpoint.tasks.core.conll import ConllLayout, TagScheme, iob1_to_iob2, read_conll
from meltpoint.tasks.core.counts import some
from meltpoint.tasks.core.readers import Record, no_column, read_csv, read_lines, read_table
from meltpoint.tasks.core.task import Example, Kind

COLUMNS: Mapping[Kind, tuple[str, ...]] = {
    "sequence_labelling": ("words", "tags"),
    "sentence_classification": ("text", "label"),
    "pair_classification": ("text_a", "text_b", "label"),
    "pair_regression": ("text_a", "text_b", "label"),
}
"""The keys that `columns` must have for each kind of task."""


@dataclass(frozen=True)
class UserFileLayout:
    """File layout of a user's task; the fields are those of the task file."""

    kind: Kind
    format: str
    columns: Mapping[str, str]
    header: bool
    quoting: bool
    labels: tuple[str, ...]
    label_range: tuple[float, float] | None
    tag_scheme: TagScheme


def read_user_file(folder: Path, name: str, layout: UserFileLayout) -> list[Example]:
    """Read the examples of one file.

    Raises:
        ValueError: the file is missing or broken; the line and the column are named.
    """
    path = folder / name
    if layout.format == "conll":
        word, tag = int(layout.columns.get("words", "0")), int(layout.columns.get("tags", "-1"))
        return read_conll(path, layout.labels, ConllLayout(word, tag, None, layout.tag_scheme))
    if layout.kind == "sequence_labelling":
        return [_tagged(path, line, row, layout) for line, row in _numbered(path, layout)]
    return [_labelled(position, record, layout) for position, record in enumerate(_records(path, layout))]


def _records(path: Path, layout: UserFileLayout) -> list[Record]:
    """The rows, with the file's column names mapped to those of `COLUMNS`."""
    if layout.format in {"tsv", "csv"}:
        read = read_csv if layout.quoting else read_table
        separator = "\t" if layout.format == "tsv" else ","
        rows = read(path, None, header=layout.header, separator=separator)
        return [_renamed(row, layout) for row in rows]
    return [_as_record(path, line, row, layout) for line, row in _numbered(path, layout)]


def _renamed(row: Record, layout: UserFileLayout) -> Record:
    positions = {}
    for name, column in layout.columns.items():
        if column not in row.positions:
            raise no_column(row.path, 1, column, row.positions)
        positions[name] = row.positions[column]
    return Record(row.path, row.line, row.fields, positions)


def _as_record(path: Path, line: int, row: Mapping[str, object], layout: UserFileLayout) -> Record:
    names = list(layout.columns)
    cells = [_text(path, line, row, layout.columns[name]) for name in names]
    return Record(path, line, cells, {name: position for position, name in enumerate(names)})


def _labelled(position: int, record: Record, layout: UserFileLayout) -> Example:
    texts = tuple(record.text(name) for name in COLUMNS[layout.kind] if name != "label")
    if layout.label_range is not None:
        return Example(str(position), texts, label=record.score("label", layout.label_range))
    ids = {label: number for number, label in enumerate(layout.labels)}
    return Example(str(position), texts, label=record.label("label", ids))


def _tagged(path: Path, line: int, row: Mapping[str, object], layout: UserFileLayout) -> Example:
    columns = layout.columns
    tokens, tags = (_list(path, line, row, columns[name]) for name in ("words", "tags"))
    if len(tokens) != len(tags):
        raise ValueError(
            f"{path}, line {line}: {some(len(tokens), 'word')} but {some(len(tags), 'tag')}. Give one tag per word."
        )
    record = Record(path, line, tags, {columns["tags"]: 0})
    ids = {label: number for number, label in enumerate(layout.labels)}
    for tag in tags:
        Record(path, line, [tag], record.positions).label(columns["tags"], ids)
    scheme_tags = iob1_to_iob2(tags) if layout.tag_scheme == "iob1" else tags
    return Example(str(line - 1), words=tuple(tokens), label=tuple(ids[tag] for tag in scheme_tags))


def _numbered(path: Path, layout: UserFileLayout) -> Iterator[tuple[int, Mapping[str, object]]]:
    """The rows of a jsonl or parquet file: (line or row number from 1, column → value)."""
    return _json_rows(path) if layout.format == "jsonl" else _parquet_rows(path, list(layout.columns.values()))


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, object]]]:
    for number, line in enumerate(read_lines(path), 1):
        try:
            row = parse_json(line)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}. Write one object of plain fields per line.") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: not a JSON object. Write one object per line.")
        yield number, row


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Mapping[str, object]]]:
    # Imported here, since only parquet files need it.
    import pyarrow
    from pyarrow import parquet

    try:
        names = parquet.read_schema(path).names
        for column in columns:
            if column not in names:
                raise no_column(path, 1, column, names)
        table = parquet.read_table(path, columns=list(columns))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing. Put the file there, or correct its name in the task file.") from None
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path} is not a readable parquet file ({error}). Write it again.") from None
    if not table.num_rows:
        raise ValueError(f"{path} is empty. Replace it with the complete file.")
    yield from enumerate(table.to_pylist(), 1)


def _value(path: Path, line: int, row: Mapping[str, object], column: str) -> object:
    if column not in row:
        raise no_column(path, line, column, row)
    return row[column]


def _text(path: Path, line: int, row: Mapping[str, object], column: str) -> str:
    """A scalar in the spelling of the task file: `true`, `1`, `0.5`, or the text itself."""
    value = _value(path, line, row, column)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str | int | float):
        return str(value)
    shown = reprlib.repr(value)
    raise ValueError(f"{path}, line {line}, field '{column}': {shown} is neither text nor a number. Correct the row.")


def _list(path: Path, line: int, row: Mapping[str, object], column: str) -> list[str]:
    value = _value(path, line, row, column)
    if not isinstance(value, list) or not value or not all(isinstance(part, str) and part for part in value):
        raise ValueError(
            f"{path}, line {line}, field '{column}': not a list of words. Write a non-empty list of texts."
        )
    return value
