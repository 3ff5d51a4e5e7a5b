"""Predictions of an exported model for a file of texts, chunk by chunk; the formats of its input and output.

The formats are csv, tsv, jsonl, parquet, plain text and columns of words.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from meltpoint.adapters.files import replacing
from meltpoint.sweeps.machine.terminal import show
from meltpoint.tasks.core.conll import SUFFIXES, ConllLayout, read_columns
from meltpoint.tasks.core.files import regular
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
from meltpoint.tasks.core.rows import check_names, json_rows, scalar_text, value_at
from meltpoint.tasks.core.wording import printable

if TYPE_CHECKING:  # importing pandas takes half a second
    import pandas

    from meltpoint.adapters.exported_model import ExportedModel
    from meltpoint.tasks.core.task import Task


ROWS = 1024
"""Rows per chunk: enough for batches of texts with similar lengths."""
USUAL: dict[int, tuple[tuple[str, ...], ...]] = {
    1: (("text",), ("sentence",), ("words",), ("tokens",)),
    2: (("text_a", "text_b"), ("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis")),
}
"""Number of texts per example → column names to look for where neither the user nor the model's task names one."""
Columns = tuple[tuple[str, ...], ...]
"""The columns of each text of an example; a text of several columns is joined."""
TABULAR = ("csv", "tsv", "txt")
"""Formats in which every cell is text."""


def predict_file(
    model: ExportedModel, file: Path, out: Path | None, columns: Sequence[str] = (), probabilities: bool = False,
    rows: int = ROWS, tell: Callable[[int], None] = lambda done: None,
) -> int:  # fmt: skip
    """Predict each row of a file, and write its columns followed by the prediction.

    Multiple labels of one text are a list in jsonl and parquet; in csv, tsv and txt they share a cell, with commas.

    Args:
        model: a model for any kind of task.
        file: csv, tsv, jsonl, parquet, txt with one text per line, or a column file (`conll`) with the task's columns.
        out: a file in one of these formats, written atomically; None prints JSON lines.
        columns: the columns with the texts (two for pairs); if empty, those of the training files, else common names.
        probabilities: whether to also write a column `probability.LABEL` per label; classification only.
        rows: rows per chunk.
        tell: called after each chunk with the number of rows done.

    Returns:
        the number of rows.

    Raises:
        ValueError: an unreadable file, a missing column, or a text that does not fit; one line.
    """
    if probabilities and not model.task.of_kind.gives_probabilities:
        raise ValueError(f"--probabilities: a model for {model.task.of_kind.words} has none; omit that option.")
    joins = model.task.of_kind.has_labels and out is not None and format_of(out) in TABULAR
    layout = _layout(model, file, columns)
    if model.input_format.context == "document":
        if layout is not None:
            rows = sys.maxsize  # a document's sentences stay together
        else:
            show("The model was trained on sentences in their documents; a column file marks them.", err=True)
    done = 0
    with writing(out, sys.stdout) as write:
        for piece in read_pieces(file, rows, layout):
            if layout is not None:
                columns = (str(layout.word % len(piece.columns)),)
            names = _text_columns(file, piece, columns, model.task)
            found = _with_predictions(model, piece, names, probabilities, file, done)
            if joins:
                found[PREDICTION] = found[PREDICTION].map(",".join)
            write(found)
            done += len(piece)
            tell(done)
    return done


def _layout(model: ExportedModel, file: Path, named: Sequence[str]) -> ConllLayout | None:
    """The layout of a column file, the same as in the model's training files; None for other files.

    Raises:
        ValueError: the model reads texts, or the column is not a number.
    """
    if format_of(file) != CONLL:
        return None
    if not model.task.of_kind.labels_words:
        raise ValueError(f"{file} is a file of tagged words by its suffix, but this model reads texts; use txt or csv.")
    word, tag = model.task.conll_columns or (0, -1)
    if named and not named[0].isdecimal():
        raise ValueError(f"--text {named[0]}: write a column number of {file}, from 0; the words' default is {word}.")
    return ConllLayout(int(named[0]) if named else word, tag, needs_tag=False)


def _text_columns(file: Path, piece: pandas.DataFrame, named: Sequence[str], task: Task) -> Columns:
    """The columns of each text: those that the user named, else those of the training files, else common names.

    Raises:
        ValueError: a column is missing, or their number does not fit the model.
    """
    count = 2 if task.of_kind.is_pair else 1
    trained = task.text_columns
    is_joined = any(len(columns) > 1 for columns in trained)
    there = [str(name) for name in piece.columns]
    for name in named:
        if name not in there:
            raise ValueError(f"{file}: {unknown(name, 'column', there)}")
    if len(set(named)) < len(named):
        raise ValueError(f"--text names {named[0]} twice; name the column of each text.")
    if named and count == 1 and is_joined and len(named) == len(trained[0]):
        return (tuple(named),)
    if named and len(named) != count:
        raise ValueError(f"--text: this model reads {count} text{'s' if count > 1 else ''} per row, not {len(named)}.")
    if named:
        return tuple((name,) for name in named)
    if trained and all({name, name.partition(".")[0]} & set(there) for columns in trained for name in columns):
        return trained
    if count == 1 and len(there) == 1:
        return ((there[0],),)
    found = next((names for names in USUAL[count] if set(names) <= set(there)), None)
    if found is None or is_joined:
        wanted = "; ".join(" + ".join(columns) for columns in trained)
        read = f" (the model was trained on {wanted})" if wanted else ""
        raise ValueError(f"{file}: no known text column among {', '.join(there)}{read}; name it with --text.")
    return tuple((name,) for name in found)


def _with_predictions(
    model: ExportedModel, piece: pandas.DataFrame, names: Columns, probabilities: bool, file: Path, before: int
) -> pandas.DataFrame:  # fmt: skip
    given = [f"probability.{label}" for label in model.task.labels] if probabilities else []
    taken = [name for name in (PREDICTION, *given) if name in piece.columns]
    if taken:
        raise ValueError(f"{file} already has a column {taken[0]}, which predictions would replace; rename it.")
    texts = []
    for number, row in enumerate(piece.to_dict(orient="records"), before + 1):
        cells = [[value_at(file, number, row, name) for name in columns] for columns in names]
        texts.append(_text(model, cells, f"{file}, row {number}"))
    result = piece.copy()
    try:
        if probabilities:
            predicted, shares = model.predict_both(texts)
            result[PREDICTION] = predicted
            for place, label in enumerate(model.task.labels):
                result[f"probability.{label}"] = shares[:, place]
        else:
            result[PREDICTION] = model.predict(texts, documents=piece.attrs.get(DOCUMENTS))
    except ValueError as error:
        raise ValueError(f"{file}, rows {before + 1} to {before + len(piece)}: {error}") from None
    return result


def _text(model: ExportedModel, cells: Sequence[Sequence[Any]], where: str) -> Any:
    """A row's texts, in the form that `ExportedModel.predict` accepts.

    Args:
        cells: the cells of each text; several are joined without empty ones, as in training.
        where: the row, for messages.

    Raises:
        ValueError: a cell is not text: null, a number that is not finite, or a list.
    """
    first = cells[0][0]
    if model.task.of_kind.labels_words and not isinstance(first, str) and isinstance(first, Iterable):
        words = list(first)
        if not all(isinstance(word, str) and word for word in words):
            raise ValueError(f"{where} has {words!r} instead of words; correct it, or remove the row.")
        return words
    bare = []
    for parts in cells:
        texts = [scalar_text("" if cell is None and len(parts) > 1 else cell) for cell in parts]
        for cell, text in zip(parts, texts, strict=True):
            if text is None:
                raise ValueError(f"{where} has {cell!r} instead of a text; fill it in, or remove the row.")
        stripped = [str(text).strip(" ") for text in texts]  # as the readers of tasks do
        bare.append(stripped[0] if len(parts) == 1 else model.task.joiner.join(filter(None, stripped)))
    if model.task.of_kind.labels_words:
        return bare[0].split()
    return bare[0] if len(bare) == 1 else tuple(bare)


# The files, in chunks.

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
    if form == "txt":
        return _framed(({TEXT: line} for line in read_lines(path)), rows)
    if form == "jsonl":
        return _framed((row for _, row in json_rows(path, enumerate(read_lines(path), 1))), rows)
    return _read_table(path, rows, is_tsv=form == "tsv")


def _framed(found: Iterator[Mapping[str, object]], rows: int) -> Iterator[pandas.DataFrame]:
    import pandas

    while piece := list(itertools.islice(found, rows)):
        yield pandas.DataFrame(piece, dtype=object)


def _read_table(path: Path, rows: int, *, is_tsv: bool) -> Iterator[pandas.DataFrame]:
    """Read a csv or tsv with a header. Cells of tsv are not quoted, as in task files; `NA` is a text."""
    import pandas

    found = read_table(path, (), header=True, separator="\t" if is_tsv else ",", quoted=not is_tsv)
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
        write = {"jsonl": _write_jsonl, CONLL: _write_conll}.get(form)
        yield (lambda piece: write(piece, file)) if write else _in_columns_of_first(_DelimitedWriter(file, form))


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
        text = json.dumps({key: _plain(value) for key, value in row.items()}, ensure_ascii=False, default=str)
        file.write(f"{printable(text)}\n")


def _write_conll(piece: pandas.DataFrame, file: TextIO) -> None:
    """Write one word per line, a tab before each further list of the row, the prediction last; then a blank line."""
    for row in piece.to_dict(orient="records"):
        cells = [_plain(value) for value in row.values()]
        tags = cells[-1]
        if not isinstance(tags, list):
            raise ValueError("conll is only for predictions per word; write jsonl, or another format.")
        words = [cell for cell in cells if isinstance(cell, list) and len(cell) == len(tags)]
        lines = ["\t".join(map(str, line)) for line in zip(*words, strict=True)]
        if any(line.count("\t") + 1 != len(words) or len(line.splitlines()) > 1 for line in lines):
            raise ValueError("a word contains a tab or a line break, which conll cannot represent; write jsonl.")
        file.write("\n".join([*lines, "", ""]))


def _plain(value: Any) -> Any:
    """A cell for JSON: numpy's numbers and arrays become Python's, a missing value becomes null."""
    found = value.tolist() if hasattr(value, "tolist") else value
    return None if isinstance(found, float) and not math.isfinite(found) else found


class _DelimitedWriter:
    """Writes csv, tsv, or, for txt, only the predictions, one per line."""

    def __init__(self, file: TextIO, form: str) -> None:
        self.file, self.form, self.is_first = file, form, True

    def __call__(self, piece: pandas.DataFrame) -> None:
        if self.form == "txt":
            self.file.writelines(f"{_cell(value)}\n" for value in piece[PREDICTION])
            return
        shown = piece.map(_cell)
        separator = "\t" if self.form == "tsv" else ","
        if self.form == "tsv":  # cells of tsv are not quoted, so they cannot contain separators
            shown = shown.map(lambda cell: re.sub(r"\r\n|[\t\r\n]", " ", cell) if isinstance(cell, str) else cell)
        quoting = csv.QUOTE_NONE if self.form == "tsv" else csv.QUOTE_MINIMAL
        shown.to_csv(
            self.file, sep=separator, index=False, header=self.is_first, quoting=quoting, lineterminator="\n"
        )  # fmt: skip
        self.is_first = False


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


SCHEMA = "schema"
"""The key of a chunk's `attrs` with the fields of the parquet file that it comes from."""
DOCUMENTS = "documents"
"""The key of a chunk's `attrs` with the document of each sentence of a column file; "" if none is marked."""
PREDICTION = "prediction"
"""The column of predictions; the columns of probabilities are `probability.LABEL`."""
