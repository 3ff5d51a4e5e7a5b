"""A cell's errors for the page: its confusion matrix or its residuals, from the finalists' stored predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from meltpoint.reports.statistics.class_scores import confusion_counts
from meltpoint.sweeps.ledger.predictions import predictions_path
from meltpoint.sweeps.ledger.scored_examples import ScoredExamples, read_scored
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.wording import counted, some

Split = Literal["dev", "test"]
MOST_LABELS, MOST_PAIRS, MOST_RESIDUALS = 12, 20, 600
"""Labels of a matrix that a page of A4 has room for; pairs of labels in its place; points of a plot of residuals."""


@dataclass(frozen=True)
class Errors:
    """A cell's errors on a split, over the seeds of its finals.

    Attributes:
        labels: of the matrix; empty where there are too many, or for regression.
        matrix: gold × predicted, counts over all seeds; a level of colour from 0 to 9 beside each.
        pairs: (gold, predicted, count) of the most frequent confusions, where labels are too many.
        residuals: (gold, mean prediction over seeds) of regression.
        notes: what the figures are of, and what is left out; or why there are none.
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
        ValueError: one is missing or damaged, or they are of different examples.
    """
    if folder is None:
        raise ValueError("the summary was not read from a folder")
    paths = [predictions_path(folder, cell_name(*cell.header.key), final, split) for final in cell.finals]
    absent = [final.seed for final, path in zip(cell.finals, paths, strict=True) if not path.exists()]
    if absent:
        raise ValueError(f"no stored predictions of seed {absent[0]}")
    found = [read_scored(path, cell.header.kind) for path in paths]
    if len({one.digest for one in found}) > 1:
        raise ValueError("the seeds' predictions are of different examples")
    return found


def errors_of(cell: CellSummary, folder: StoragePath | None) -> Errors:
    """A cell's errors: on test where every final is scored there, else on dev.

    A cell whose test split is closed, or whose test labels are hidden, shows nothing of test.
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
        return Errors(split, notes=("An example may have several labels, so that there is no confusion matrix.",))
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
    few = f"{counted(len(points))} of {some(len(gold), 'example')} are drawn, evenly by their order."
    return Errors(split, residuals=points, notes=(note, *([few] if len(points) < len(gold) else [])))
