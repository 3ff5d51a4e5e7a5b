"""Files of texts, read and written in chunks: csv, tsv, jsonl, parquet, plain text and columns of words."""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from meltpoint.adapters.files import replacing
from meltpoint.tasks.core.conll import SUFFIXES, ConllLayout, read_columns
from meltpoint.tasks.core.files import opened, regular
from meltpoint.tasks.core.readers import (
    NAMED_TWICE,
    SEPARATORS,
    Record,
    is_in_quotes,
    named_twice,
    read_lines,
    read_table,
    unreadable,
)
from meltpoint.tasks.core.registry import unknown
from meltpoint.tasks.core.rows import check_names, json_rows
from meltpoint.tasks.core.wording import printable
from meltpoint.tasks.inspection.text_shape import decodable, table_shape

if TYPE_CHECKING:  # importing pandas takes half a second
    import pandas


ROWS = 1024
"""Rows per chunk: enough for batches of texts with similar lengths."""
SAMPLE_BYTES = 2**20
"""The bytes of a file from which its encoding and separator are guessed."""
SCHEMA = "schema"
"""The key of a chunk's `attrs` with the fields of the parquet file that it comes from."""
DOCUMENTS = "documents"
"""The key of a chunk's `attrs` with the document of each sentence of a column file; "" if none is marked."""
PREDICTION = "prediction"
"""The column of predictions; the columns of probabilities are `probability.LABEL`."""
FORMATS = ("csv", "tsv", "jsonl", "parquet", "txt")
CONLL = "conll"
"""The format of column files. Each sentence is one row with a list of cells per column, named by its number."""
TEXT = "text"
"""The column of a plain text file."""


def format_of(path: Path) -> str:
    """The format given by a file's suffix.

    Raises:
        ValueError: an unknown suffix.
    """
    form = path.suffix.lstrip(".").lower()
    if f".{form}" in SUFFIXES:
        return CONLL
    if form not in FORMATS:
        raise ValueError(f"{path}: {unknown(form or 'none', 'ending', (*FORMATS, CONLL))}")
    return form


def read_pieces(path: Path, rows: int, layout: ConllLayout | None = None) -> Iterator[pandas.DataFrame]:
    """Read a file's table in chunks of `rows` rows, with the readers for task files.

    Cells of csv and tsv are unchanged texts. Values of jsonl keep their types, whereas pandas' own reader may turn 1
    into 1.0.

    Args:
        layout: the layout of a column file; None: the words are in the first column.

    Raises:
        ValueError: the file is missing, empty or broken, or has two columns with the same name; one line that names it.
    """
    form = format_of(path)
    if form == CONLL:
        return _read_conll(path, rows, layout or ConllLayout(needs_tag=False))
    if form == "parquet":
        return _read_parquet(path, rows)
    sample, encoding = _beginning(path)
    lines = read_lines(path, encoding=encoding)
    if form == "txt":
        return _framed(({TEXT: line} for line in lines), rows)
    if form == "jsonl":
        return _framed((row for _, row in json_rows(path, enumerate(lines, 1))), rows)
    usual = "\t" if form == "tsv" else ","
    shape = None if usual in sample.lstrip().partition("\n")[0] else table_shape(sample)
    return _read_table(path, rows, shape.delimiter if shape else usual, encoding)


def _beginning(path: Path) -> tuple[str, str | None]:
    """A file's first lines, and its encoding as `tune` finds it; None for UTF-8, which later lines may still break.

    Raises:
        ValueError: the file is missing or no text, or only a few lines are not UTF-8.
    """
    try:
        with opened(path) as file:
            data = file.read(SAMPLE_BYTES)
    except OSError as error:
        raise unreadable(path, error) from None
    if len(data) == SAMPLE_BYTES:
        data = data[: data.rfind(b"\n") + 1]
    try:
        return data.decode("utf-8-sig"), None
    except UnicodeDecodeError:
        whole, encoding = decodable(path)
        return whole[:SAMPLE_BYTES].decode(encoding, "ignore"), encoding


def _framed(found: Iterator[Mapping[str, object]], rows: int) -> Iterator[pandas.DataFrame]:
    import pandas

    while piece := list(itertools.islice(found, rows)):
        yield pandas.DataFrame(piece, dtype=object)


def _read_table(path: Path, rows: int, separator: str, encoding: str | None) -> Iterator[pandas.DataFrame]:
    """Read a table with a header. Cells between tabs are not quoted, as in task files; `NA` is a text."""
    import pandas

    is_tsv = separator == "\t"
    found = read_table(path, (), header=True, separator=separator, quoted=not is_tsv, encoding=encoding)
    first = list(itertools.islice(found, rows))
    _check_table(path, first, is_tsv=is_tsv)
    names = list(first[0].positions)
    piece = first
    while piece:
        yield pandas.DataFrame([record.fields for record in piece], columns=names, dtype=object)
        piece = list(itertools.islice(found, rows))


def _check_table(path: Path, records: Sequence[Record], *, is_tsv: bool) -> None:
    """Check a table for signs of misreading: duplicate names, another separator, quotes in tsv."""
    positions = records[0].positions
    twice = next((name for name, position in positions.items() if position == NAMED_TWICE), None)
    if twice is not None:
        raise named_twice(f"{path}, line 1", twice)
    name = next(iter(positions))
    other = next((words for mark, words in SEPARATORS.items() if mark in name), None)
    if len(positions) == 1 and other is not None:
        wanted = "tabs (tsv)" if is_tsv else "commas (csv)"
        raise ValueError(f"{path}, line 1: the cells seem to be separated by {other}; separate them by {wanted}.")
    if is_tsv and any(all(map(is_in_quotes, column)) for column in zip(*(one.fields for one in records), strict=True)):
        raise ValueError(f"{path}: a column has all its cells in quotes, which tsv keeps as text; write it as csv.")


def _read_parquet(path: Path, rows: int) -> Iterator[pandas.DataFrame]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(regular(path)) as file:
            check_names(path, file.schema_arrow.names)
            for batch in file.iter_batches(batch_size=rows):
                # By default, an integer next to a null becomes a float, which changes integers beyond 2^53.
                piece = batch.to_pandas(integer_object_nulls=True, ignore_metadata=True)
                piece.attrs[SCHEMA] = tuple(batch.schema)
                yield piece
    except OSError as error:
        raise unreadable(path, error) from None
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a readable parquet file ({error}); write it again.") from None


def _read_conll(path: Path, rows: int, layout: ConllLayout) -> Iterator[pandas.DataFrame]:
    import pandas

    sentences = read_columns(path, layout).sentences
    width = min(len(columns) for sentence in sentences for _, columns in sentence.rows)
    for start in range(0, len(sentences), rows):
        piece = sentences[start : start + rows]
        frame = pandas.DataFrame({str(index): [one.column(index) for one in piece] for index in range(width)})
        frame.attrs[DOCUMENTS] = [str(one.document or "") for one in piece]
        yield frame


@contextmanager
def writing(out: Path | None, standard_output: TextIO) -> Iterator[Callable[[pandas.DataFrame], None]]:
    """Yield a writer of chunks. The complete file appears once the block ends without an error.

    Args:
        out: the file; None prints JSON lines.

    Raises:
        ValueError: the file has an unknown suffix.
    """
    if out is None:
        yield lambda piece: _write_jsonl(piece, standard_output)
        return
    form = format_of(out)
    with replacing(out) as beside, ExitStack() as stack:
        if form == "parquet":
            yield _in_columns_of_first(_parquet_writer(beside, stack))
            return
        file = stack.enter_context(beside.open("w", encoding="utf-8", newline=""))
        write = {"jsonl": _write_jsonl, "txt": _write_predictions, CONLL: _write_conll}.get(form)
        if write is None:
            yield _in_columns_of_first(lambda piece: _write_table(piece, file, is_tsv=form == "tsv"))
        else:
            yield lambda piece: write(piece, file)


def _in_columns_of_first(write: Callable[[pandas.DataFrame], None]) -> Callable[[pandas.DataFrame], None]:
    """A writer of tables, whose columns are those of the first chunk: lines of jsonl may differ in keys and order."""
    columns: list[str] = []

    def ordered(piece: pandas.DataFrame) -> None:
        columns.extend(() if columns else piece.columns)
        further = [name for name in piece.columns if name not in columns]
        if further:
            raise ValueError(f"the first {ROWS} rows have no {', '.join(further)}, and a table is written from them; "
                             "write jsonl.")  # fmt: skip
        write(piece if list(piece.columns) == columns else piece.reindex(columns=columns))

    return ordered


def _write_jsonl(piece: pandas.DataFrame, file: TextIO) -> None:
    for row in piece.to_dict(orient="records"):
        text = json.dumps({key: plain(value) for key, value in row.items()}, ensure_ascii=False, default=str)
        file.write(f"{printable(text)}\n")


def _write_conll(piece: pandas.DataFrame, file: TextIO) -> None:
    """Write one word per line, a tab before each further list of the row, the prediction last; then a blank line."""
    for row in piece.to_dict(orient="records"):
        cells = [plain(value) for value in row.values()]
        tags = cells[-1]
        if not isinstance(tags, list):
            raise ValueError("conll is only for predictions per word; write jsonl, or another format.")
        words = [cell for cell in cells if isinstance(cell, list) and len(cell) == len(tags)]
        lines = ["\t".join(map(str, line)) for line in zip(*words, strict=True)]
        if any(line.count("\t") + 1 != len(words) or len(line.splitlines()) > 1 for line in lines):
            raise ValueError("a word contains a tab or a line break, which conll cannot represent; write jsonl.")
        file.write("\n".join([*lines, "", ""]))


def plain(value: Any) -> Any:
    """A cell for JSON: numpy's numbers and arrays become Python's, a missing value becomes null."""
    found = value.tolist() if hasattr(value, "tolist") else value
    return None if isinstance(found, float) and not math.isfinite(found) else found


def _write_predictions(piece: pandas.DataFrame, file: TextIO) -> None:
    file.writelines(f"{_cell(value)}\n" for value in piece[PREDICTION])


def _write_table(piece: pandas.DataFrame, file: TextIO, *, is_tsv: bool) -> None:
    shown, separator, quoting = piece.map(_cell), ",", csv.QUOTE_MINIMAL
    if is_tsv:  # cells of tsv are not quoted, so they cannot contain separators
        shown = shown.map(lambda cell: re.sub(r"\r\n|[\t\r\n]", " ", cell) if isinstance(cell, str) else cell)
        separator, quoting = "\t", csv.QUOTE_NONE
    is_first = file.tell() == 0
    shown.to_csv(file, sep=separator, index=False, header=is_first, quoting=quoting, lineterminator="\n")


def _cell(value: Any) -> Any:
    """Join a list with spaces; return any other value unchanged."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _parquet_writer(path: Path, stack: ExitStack) -> Callable[[pandas.DataFrame], None]:
    """Write parquet; the first chunk determines the columns."""
    import pyarrow
    import pyarrow.parquet

    opened: list[Any] = []

    def write(piece: pandas.DataFrame) -> None:
        fields = piece.attrs.pop(SCHEMA, ())  # pyarrow warns of attributes that are no JSON
        try:
            if not opened:
                schema = pyarrow.Table.from_pandas(piece, preserve_index=False).schema
                for field in fields:  # a column may be null in all rows of the first chunk
                    schema = schema.set(schema.get_field_index(field.name), field)
                opened.append(stack.enter_context(pyarrow.parquet.ParquetWriter(path, schema)))
            opened[0].write_table(pyarrow.Table.from_pandas(piece, opened[0].schema, preserve_index=False))
        except pyarrow.ArrowException as error:
            raise ValueError(
                f"a column does not fit parquet or its type in the first rows ({error}); write jsonl."
            ) from None

    return write
