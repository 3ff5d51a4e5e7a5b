"""Errors of finalists and disagreements of modes on the page.

All examples are from dev, even if test is scored: a search that follows a look at single test examples is tuned on
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from meltpoint.reports.formats import listed, title
from meltpoint.reports.statistics.finals_scores import confusion_counts
from meltpoint.sweeps.ledger.predictions import ScoredExamples, predictions_path, read_lines, read_scored
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary
from meltpoint.sweeps.specification.cells import cell_name, data_spec, word_of
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.tasks.core import kinds, sources
from meltpoint.tasks.core.splits import load_training_data
from meltpoint.tasks.core.task import Example
from meltpoint.tasks.core.wording import counted, some

Split = Literal["dev", "test"]
MOST_LABELS, MOST_PAIRS, MOST_RESIDUALS = 12, 20, 600
"""Most labels of a matrix that fits on A4; most pairs of labels in its place; most points of a residual plot."""


@dataclass(frozen=True)
class Errors:
    """A cell's errors on a split, over the seeds of its finals.

    Attributes:
        labels: of the matrix; empty if there are too many, or for regression.
        matrix: gold × predicted, counts over all seeds, each with a level of colour from 0 to 9.
        pairs: (gold, predicted, count) of the most frequent confusions, if there are too many labels.
        residuals: (gold, mean prediction over seeds) of regression.
        notes: the source of the figures and any omissions, or the reason why there are none.
    """

    split: Split | None = None
    labels: tuple[str, ...] = ()
    matrix: tuple[tuple[tuple[int, int], ...], ...] = ()
    pairs: tuple[tuple[str, str, int], ...] = ()
    residuals: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()


def finals_predictions(cell: CellSummary, folder: StoragePath | None, split: Split) -> list[ScoredExamples]:
    """The stored predictions of a cell's finals on a split.

    Raises:
        ValueError: one is missing or damaged, or they cover different examples.
    """
    if folder is None:
        raise ValueError("the summary was not read from a folder")
    paths = [predictions_path(folder, cell_name(*cell.header.key), final, split) for final in cell.finals]
    absent = [final.seed for final, path in zip(cell.finals, paths, strict=True) if not path.exists()]
    if absent:
        raise ValueError(f"no stored predictions of seed {absent[0]}")
    found = [read_scored(path, cell.header.kind) for path in paths]
    if len({one.digest for one in found}) > 1:
        raise ValueError("the seeds' predictions cover different examples")
    return found


def errors_of(cell: CellSummary, folder: StoragePath | None) -> Errors:
    """A cell's errors: on test if every final is scored there, else on dev.

    A cell shows nothing of test if its test split is closed or its test labels are hidden.
    """
    if not cell.finals:
        return Errors(notes=("There are no finals yet.",))
    split: Split = "test" if cell.test is not None and cell.test.count == len(cell.finals) else "dev"
    try:
        runs = finals_predictions(cell, folder, split)
    except ValueError as error:
        return Errors(notes=(f"Not shown: {error}.",))
    kind = kinds.get(runs[0].kind)
    if kind.has_labels:
        return Errors(split, notes=("An example may have several labels, so a confusion matrix does not apply.",))
    return _residuals(runs, split) if kind.is_regression else _confusions(runs, split)


def _confusions(runs: Sequence[ScoredExamples], split: Split) -> Errors:
    labels = runs[0].labels
    labels_words = kinds.get(runs[0].kind).labels_words
    if labels_words:  # a file has the tags that occur in it
        labels = tuple(sorted({label for run in runs for label in run.labels}))
    counts = sum((confusion_counts(run, labels) for run in runs), np.zeros((len(labels), len(labels)), dtype=np.int64))
    unit = "word" if labels_words else "example"
    note = f"{split}, {some(len(runs), 'seed')} together: {some(int(counts.sum()), f'predicted {unit}')}."
    if len(labels) <= MOST_LABELS:
        return Errors(split, labels, tuple(map(_levels, counts.tolist())), notes=(note,))
    wrong = counts - np.diag(np.diag(counts))
    order = np.argsort(-wrong, axis=None, kind="stable")[:MOST_PAIRS]
    rows, columns = np.unravel_index(order, wrong.shape)
    pairs = tuple(
        (labels[row], labels[column], int(wrong[row, column]))
        for row, column in zip(rows, columns, strict=True) if wrong[row, column]
    )  # fmt: skip
    many = f"{counted(len(labels))} labels are too many for a matrix: these are the most frequent confusions."
    return Errors(split, pairs=pairs, notes=(note, many))


def _levels(row: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """(count, level of colour) of each entry: its share of the row in tenths."""
    return tuple((count, min(9, 10 * count // sum(row)) if sum(row) else 0) for count in row)


def _residuals(runs: Sequence[ScoredExamples], split: Split) -> Errors:
    gold = runs[0].gold.astype(np.float64)
    mean = np.mean([run.predicted for run in runs], axis=0)
    shown = np.unique(np.linspace(0, len(gold) - 1, min(len(gold), MOST_RESIDUALS)).astype(int))
    points = tuple((round(float(gold[at]), 4), round(float(mean[at]), 4)) for at in shown)
    error = float(np.abs(mean - gold).mean())
    note = f"{split}, the mean prediction over {some(len(runs), 'seed')}: mean absolute error {error:.3f}."
    few = f"{counted(len(points))} of {some(len(gold), 'example')} are drawn, evenly spaced in their order."
    return Errors(split, residuals=points, notes=(note, *([few] if len(points) < len(gold) else [])))


MOST_EXAMPLES, MOST_CHARACTERS = 8, 500
MOST_BYTES = 50_000_000
"""Size of a task's files above which its texts are left out: reading them would slow the page down too much."""


@dataclass(frozen=True)
class Disputed:
    """A disputed example.

    Attributes:
        id: its id in dev.
        text: its text; "" if the data is not available.
        gold: its label, score, or tags.
        given: for each cell, its labels over seeds, its share of words or labels that are right, or its mean score.
    """

    id: str
    text: str
    gold: str
    given: tuple[str, ...]


@dataclass(frozen=True)
class Disagreements:
    """The examples of a task about which its cells disagree most.

    Attributes:
        cells: the titles of the compared cells.
        examples: the most disputed one first.
        notes: the way they are chosen, and any omissions, a sentence each.
    """

    task: str
    cells: tuple[str, ...] = ()
    examples: tuple[Disputed, ...] = ()
    notes: tuple[str, ...] = ()


class _Line(BaseModel):
    """A line of stored predictions of any kind of task."""

    id: str
    gold: str | float | tuple[str, ...]


def disagreements(summary: SweepSummary) -> list[Disagreements]:
    """The disagreements of every task that has several cells with finals."""
    tasks: dict[str, list[CellSummary]] = {}
    for cell in summary.cells:
        if cell.finals:
            tasks.setdefault(cell.header.task, []).append(cell)
    return [_of_task(summary, task, cells) for task, cells in tasks.items() if len(cells) > 1]


def _of_task(summary: SweepSummary, task: str, cells: Sequence[CellSummary]) -> Disagreements:
    runs: dict[str, list[ScoredExamples]] = {}
    notes: list[str] = []
    for cell in cells:
        try:
            runs[_title(cell, summary)] = finals_predictions(cell, summary.folder, "dev")
        except ValueError as error:
            notes.append(f"{_title(cell, summary)} is left out: {error}.")
    if len(runs) < 2 or len({found[0].digest for found in runs.values()}) > 1:
        reason = "" if len(runs) < 2 else " The cells' predictions cover different examples."
        return Disagreements(task, notes=(f"Fewer than two cells can be compared.{reason}", *notes))
    scores = np.array([_right(found) for found in runs.values()])  # (cells, examples)
    gap = scores.max(axis=0) - scores.min(axis=0)
    chosen = [int(at) for at in np.argsort(-gap, kind="stable")[:MOST_EXAMPLES] if gap[at] > 0]
    first = next(cell for cell in cells if _title(cell, summary) in runs)
    texts, why = _texts(summary, first) if chosen else ({}, "")
    lines = _lines(summary, first)
    examples = tuple(_disputed(lines[at], texts, [_given(found, at) for found in runs.values()]) for at in chosen)
    kind = cells[0].header.kind
    how = f"{_measure(kind)}; {counted(int((gap > 0).sum()))} of {some(len(gap), 'dev example')} are disputed."
    return Disagreements(task, tuple(runs), examples, (how, *([why] if why else []), *notes))


def _title(cell: CellSummary, summary: SweepSummary) -> str:
    head = cell.header
    several = len({one.header.encoder for one in summary.cells}) > 1
    return " ".join(part for part in (head.encoder if several else "", title(head.mode), head.variant) if part)


def _measure(kind: str) -> str:
    described = kinds.get(kind)
    if described.is_regression:
        return "Chosen by the difference between the cells' mean absolute errors over seeds"
    share = "words" if described.labels_words else "labels" if described.has_labels else "seeds"
    return f"Chosen by the difference between the cells' shares of correct {share}"


def _right(runs: Sequence[ScoredExamples]) -> NDArray[np.float64]:
    """The quality of the seeds on each example: the share that is right, or minus the mean absolute error."""
    mean: NDArray[np.float64] = np.mean([_right_of(run) for run in runs], axis=0)
    return mean


def _right_of(run: ScoredExamples) -> NDArray[np.float64]:
    kind = kinds.get(run.kind)
    if kind.is_regression:
        error: NDArray[np.float64] = np.abs(run.predicted.astype(np.float64) - run.gold.astype(np.float64))
        return -error
    same = np.asarray(run.predicted == run.gold, dtype=np.float64)
    if kind.has_labels:  # (examples, labels)
        return np.asarray(same.mean(axis=1), dtype=np.float64)
    if not kind.labels_words:
        return same
    ends = np.cumsum(run.lengths)
    right = np.concatenate([[0.0], np.cumsum(same)])
    sums = right[ends] - right[ends - run.lengths]
    return np.asarray(sums / np.maximum(run.lengths, 1), dtype=np.float64)  # a sentence without words has 0 of 0


def _given(runs: Sequence[ScoredExamples], at: int) -> str:
    kind = kinds.get(runs[0].kind)
    if kind.is_regression:
        return f"{np.mean([run.predicted[at] for run in runs]):.2f}"
    if kind.labels_words or kind.has_labels:
        return f"{100 * float(_right(runs)[at]):.0f} % of its {'words' if kind.labels_words else 'labels'}"
    labels = [run.labels[int(run.predicted[at])] for run in runs]
    return listed(f"{label} ({labels.count(label)} of {len(labels)})" for label in labels)


def _lines(summary: SweepSummary, cell: CellSummary) -> list[_Line]:
    assert summary.folder is not None
    path = predictions_path(summary.folder, cell_name(*cell.header.key), cell.finals[0], "dev")
    return read_lines(path, _Line, "id and gold")


def _disputed(line: _Line, texts: Mapping[str, Example], given: Sequence[str]) -> Disputed:
    example = texts.get(line.id)
    text = "" if example is None else " ".join(example.words) if example.words else " ⏐ ".join(example.texts)
    short = text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
    gold = " ".join(line.gold) if isinstance(line.gold, tuple) else str(line.gold)
    return Disputed(line.id, short, gold[:MOST_CHARACTERS], tuple(given))


def _texts(summary: SweepSummary, cell: CellSummary) -> tuple[dict[str, Example], str]:
    """Dev's examples by id, if the data is in files here and unchanged since the sweep; else the reason."""
    try:
        spec = data_spec(summary.spec, word_of(summary.spec, cell.header.task))
        task = sources.find(spec)
        if not task.generated and sources.open_bytes(spec) == 0:
            return {}, "The texts are left out: the task's data is not in files here."
        if sources.open_bytes(spec) > MOST_BYTES:
            return {}, f"The texts are left out: the task's files have more than {counted(MOST_BYTES)} bytes."
        data = load_training_data(spec)
    except (ValueError, OSError, StopIteration) as error:
        return {}, f"The texts are left out: {error}"
    if data.fingerprint != cell.header.data_fingerprint:
        return {}, "The texts are left out: the task's data has changed since the sweep."
    return {example.id: example for example in data.all_dev}, ""
