"""Predictions of an exported model for a file of texts, chunk by chunk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meltpoint.sweeps.machine import terminal
from meltpoint.sweeps.results.text_files import (
    CONLL,
    DOCUMENTS,
    PREDICTION,
    ROWS,
    format_of,
    plain,
    read_pieces,
    writing,
)
from meltpoint.tasks.core.conll import ConllLayout
from meltpoint.tasks.core.registry import unknown
from meltpoint.tasks.core.rows import scalar_text, value_at

if TYPE_CHECKING:  # importing pandas takes half a second
    import pandas

    from meltpoint.adapters.exported_model import ExportedModel
    from meltpoint.tasks.core.task import Task


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
            terminal.tell("The model was trained on sentences in their documents; a column file marks them.", err=True)
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
    for number, given in enumerate(piece.to_dict(orient="records"), before + 1):
        row = {name: plain(value) for name, value in given.items()}  # parquet gives arrays and NaN
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
