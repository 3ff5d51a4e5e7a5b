"""Tables of texts for `meltpoint predict`, in and out: csv, tsv, jsonl, parquet and plain text, read in pieces."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from meltpoint.adapters.files import replacing
from meltpoint.tasks.core.bounded import regular
from meltpoint.tasks.core.printable import printable
from meltpoint.tasks.core.registry import unknown

if TYPE_CHECKING:  # it takes half a second to import
    import pandas

FORMATS = ("csv", "tsv", "jsonl", "parquet", "txt")
TEXT = "text"
"""The column of a plain text file."""


def format_of(path: Path) -> str:
    """The format that a file's name ends with.

    Raises:
        ValueError: another ending.
    """
    form = path.suffix.lstrip(".").lower()
    if form not in FORMATS:
        raise ValueError(f"{path}: {unknown(form or 'none', 'ending', FORMATS)}")
    return form


def read_pieces(path: Path, rows: int) -> Iterator[pandas.DataFrame]:
    """The table of a file in pieces of so many rows; cells of csv and tsv are texts, as they stand there.

    Raises:
        ValueError: the file is missing, empty or broken; one line that names it.
    """
    import pandas

    read = {"csv": _read_delimited, "tsv": _read_delimited, "jsonl": _read_jsonl, "parquet": _read_parquet,
            "txt": _read_text}[format_of(path)]  # fmt: skip
    try:
        yield from read(regular(path), rows)
    except FileNotFoundError:
        raise ValueError(f"{path} is missing.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8; convert the file.") from None
    except (pandas.errors.EmptyDataError, pandas.errors.ParserError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())[:300]}") from None


def _read_delimited(path: Path, rows: int) -> Iterator[pandas.DataFrame]:
    """A csv or tsv with a header. Cells of tsv are not quoted, as in the tasks' files; `NA` is a text."""
    import pandas

    is_tsv = path.suffix.lower() == ".tsv"
    with pandas.read_csv(
        path, sep="\t" if is_tsv else ",", quoting=csv.QUOTE_NONE if is_tsv else csv.QUOTE_MINIMAL, dtype=str,
        keep_default_na=False, na_filter=False, encoding="utf-8-sig", chunksize=rows, on_bad_lines="error",
    ) as pieces:  # fmt: skip
        yield from pieces


def _read_jsonl(path: Path, rows: int) -> Iterator[pandas.DataFrame]:
    """JSON objects, one a line, with their values as they stand there: pandas' own reader makes 1 of one row 1.0."""
    import pandas

    with path.open(encoding="utf-8-sig", newline="\n") as file:
        lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
        while piece := [_object(number, line) for number, line in itertools.islice(lines, rows)]:
            yield pandas.DataFrame(piece, dtype=object)


def _object(number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {number} is no JSON ({error.msg})") from None
    if not isinstance(found, dict):
        raise ValueError(f'line {number} is no JSON object, as {{"text": …}}')
    return found


def _read_parquet(path: Path, rows: int) -> Iterator[pandas.DataFrame]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=rows):
            yield batch.to_pandas()


def _read_text(path: Path, rows: int) -> Iterator[pandas.DataFrame]:
    """A text a line."""
    import pandas

    with path.open(encoding="utf-8-sig", newline="\n") as file:
        lines: list[str] = []
        for line in file:
            lines.append(line.rstrip("\r\n"))
            if len(lines) == rows:
                yield pandas.DataFrame({TEXT: lines})
                lines = []
    if lines:
        yield pandas.DataFrame({TEXT: lines})


class Writer(Protocol):
    """A function that takes the next piece of a table."""

    def __call__(self, piece: pandas.DataFrame) -> None: ...  # noqa: D102


@contextmanager
def writing(out: Path | None, standard_output: TextIO) -> Iterator[Writer]:
    """A writer of pieces; the file is there when the block ends without an error, and whole. None: JSON lines, printed.

    Raises:
        ValueError: the file's ending is no format's.
    """
    if out is None:
        yield lambda piece: _write_jsonl(piece, standard_output)
        return
    form = format_of(out)
    with replacing(out) as beside, ExitStack() as stack:
        if form == "parquet":
            yield _ParquetWriter(beside, stack)
            return
        file = stack.enter_context(beside.open("w", encoding="utf-8", newline=""))
        yield (lambda piece: _write_jsonl(piece, file)) if form == "jsonl" else _DelimitedWriter(file, form)


def _write_jsonl(piece: pandas.DataFrame, file: TextIO) -> None:
    for row in piece.to_dict(orient="records"):
        text = json.dumps({key: _plain(value) for key, value in row.items()}, ensure_ascii=False, default=str)
        file.write(f"{printable(text)}\n")


def _plain(value: Any) -> Any:
    """A cell as JSON has it: numpy's numbers and arrays as Python's, a missing one as null."""
    found = value.tolist() if hasattr(value, "tolist") else value
    return None if isinstance(found, float) and not math.isfinite(found) else found


class _DelimitedWriter:
    """Writes csv, tsv, or, for txt, the predictions alone, one a line."""

    def __init__(self, file: TextIO, form: str) -> None:
        self.file, self.form, self.is_first = file, form, True

    def __call__(self, piece: pandas.DataFrame) -> None:
        if self.form == "txt":
            self.file.writelines(f"{_cell(value)}\n" for value in piece[PREDICTION])
            return
        shown = piece.map(_cell)
        separator = "\t" if self.form == "tsv" else ","
        if self.form == "tsv":  # cells of tsv are not quoted, so that they cannot hold what separates them
            shown = shown.map(
                lambda cell: " ".join(cell.split("\t")).replace("\n", " ") if isinstance(cell, str) else cell
            )
        quoting = csv.QUOTE_NONE if self.form == "tsv" else csv.QUOTE_MINIMAL
        shown.to_csv(
            self.file, sep=separator, index=False, header=self.is_first, quoting=quoting, lineterminator="\n"
        )  # fmt: skip
        self.is_first = False


def _cell(value: Any) -> Any:
    """A list as words with spaces between them; anything else as it is."""
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


class _ParquetWriter:
    """Writes parquet; the columns are those of the first piece."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path, self.stack = path, stack
        self.writer: Any = None

    def __call__(self, piece: pandas.DataFrame) -> None:
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.Table.from_pandas(piece, preserve_index=False)
        if self.writer is None:
            self.writer = self.stack.enter_context(pyarrow.parquet.ParquetWriter(self.path, table.schema))
        self.writer.write_table(table.cast(self.writer.schema))


PREDICTION = "prediction"
"""The column of predictions; those of probabilities are `probability.LABEL`."""
