"""Scores of each class, and the confusion matrix, from a cell's stored predictions: the mean over its finals.

Computed by scikit-learn, and of spans by `tasks.core.metrics`. Nothing is read of a test split but what the finalists
predicted when it was opened for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meltpoint.sweeps.ledger.predictions import predictions_path
from meltpoint.sweeps.ledger.scored_examples import ScoredExamples, read_scored
from meltpoint.sweeps.results.summary import CellSummary
from meltpoint.sweeps.specification.cells import cell_name
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.kinds import TaskKind
from meltpoint.tasks.core.metrics import span_scores, split_labels


@dataclass(frozen=True)
class ClassRow:
    """The scores of one class, or of one type of span: means over the finals, fractions.

    Attributes:
        name: the label, or the type of span.
        precision, recall, f1: 0 where undefined.
        examples: how many gold examples (or spans) have it.
    """

    name: str
    precision: float
    recall: float
    f1: float
    examples: int


@dataclass(frozen=True)
class ClassScores:
    """The classes of a cell on one split.

    Attributes:
        split: "test" where it is scored there, else "dev".
        rows: the classes, in the labels' order.
        confusion: how many examples of each gold class (rows) were predicted as each class (columns), the mean over the
            finals; (labels, labels), or None where an example may have several labels, and for spans.
        finals: number of finals.
    """

    split: str
    rows: tuple[ClassRow, ...]
    confusion: NDArray[np.float64] | None
    finals: int

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the rows and of the matrix."""
        return tuple(row.name for row in self.rows)


def cell_class_scores(cell: CellSummary, folder: StoragePath | None) -> ClassScores | None:
    """The classes of a cell; None for regression, and where predictions are not stored or cannot be read.

    Args:
        cell: of a sweep.
        folder: the sweep's folder.
    """
    if folder is None or not cell.finals or kinds.get(cell.header.kind).is_regression:
        return None
    split = "test" if all(final.test for final in cell.finals) else "dev"
    paths = [predictions_path(folder, cell_name(*cell.header.key), final, split) for final in cell.finals]
    try:
        runs = [read_scored(path, cell.header.kind) for path in paths]
    except (ValueError, OSError):
        return None  # the table's own comparisons say which file is damaged
    return class_scores(runs, split)


def class_scores(runs: Sequence[ScoredExamples], split: str) -> ClassScores:
    """The classes of several runs on the same examples."""
    kind = kinds.get(runs[0].kind)
    if kind.labels_words and not kind.has_spans:  # a file has the labels that occur in it
        runs = _with_labels(runs, sorted({label for run in runs for label in run.labels}))
    names = _names(runs[0], kind)
    of_runs = [_rows(run, kind, names) for run in runs]
    means = np.mean(np.array(of_runs, dtype=np.float64).reshape(len(runs), len(names), 3), axis=0)
    rows = tuple(
        ClassRow(name, float(precision), float(recall), float(f1), examples)
        for name, (precision, recall, f1), examples in zip(names, means, _examples(runs[0], kind, names), strict=True)
    )
    counts = [confusion_counts(run, run.labels) for run in runs] if kind.target in ("label", "grade", "classes") else []
    matrix = np.mean(counts, axis=0) if counts else None
    return ClassScores(split, rows, matrix, len(runs))


def _with_labels(runs: Sequence[ScoredExamples], labels: Sequence[str]) -> list[ScoredExamples]:
    """The same runs with these labels, which have all of theirs."""
    found = []
    for run in runs:
        places = np.array([labels.index(label) for label in run.labels], dtype=np.int32)
        found.append(replace(run, labels=tuple(labels), gold=places[run.gold], predicted=places[run.predicted]))
    return found


def _names(run: ScoredExamples, kind: TaskKind) -> list[str]:
    """The labels, or the types of span that occur."""
    if not kind.has_spans:
        return list(run.labels)
    return sorted({type_ for prefix, type_ in split_labels(run.labels) if prefix != "O"})


def _rows(run: ScoredExamples, kind: TaskKind, names: Sequence[str]) -> list[tuple[float, float, float]]:
    """(precision, recall, F1) of each class."""
    if kind.has_spans:
        gold, predicted = run.nested(run.gold), run.nested(run.predicted)
        found = [span_scores(gold, predicted, run.labels, name) for name in names]
        return [(one.precision, one.recall, one.f1) for one in found]
    from sklearn.metrics import precision_recall_fscore_support  # takes a second to import

    parts = precision_recall_fscore_support(
        run.gold, run.predicted, labels=range(len(names)), average=None, zero_division=0
    )  # fmt: skip
    return [(float(p), float(r), float(f)) for p, r, f in zip(*parts[:3], strict=True)]


def _examples(run: ScoredExamples, kind: TaskKind, names: Sequence[str]) -> list[int]:
    """The number of gold examples, or spans, of each class."""
    if kind.has_spans:
        labels = split_labels(run.labels)
        begun = [labels[tag][1] for tag in run.gold.tolist() if labels[tag][0] == "B"]
        return [begun.count(name) for name in names]
    if run.gold.ndim == 2:
        return [int(count) for count in run.gold.sum(axis=0)]
    return [int(np.sum(run.gold == label)) for label in range(len(names))]


def confusion_counts(run: ScoredExamples, labels: Sequence[str]) -> NDArray[np.int64]:
    """The numbers of examples, or words: (labels, labels), a row a gold label, a column a predicted one.

    Args:
        labels: all that occur in the run, and perhaps others.
    """
    from sklearn.metrics import confusion_matrix  # takes a second to import

    places = np.array([labels.index(label) for label in run.labels], dtype=np.int64)
    gold, predicted = (places[side.astype(np.int64)] for side in (run.gold, run.predicted))
    return np.asarray(confusion_matrix(gold, predicted, labels=range(len(labels))), dtype=np.int64)
