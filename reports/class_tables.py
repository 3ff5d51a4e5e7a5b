"""The tables of classes in a report: scores of each class, and the confusion matrix; as rows, and for JSON."""

from __future__ import annotations

from typing import Any

from meltpoint.reports.formats import percent, title
from meltpoint.reports.statistics.finals_scores import ClassScores, cell_class_scores
from meltpoint.sweeps.results.summary import CellSummary, SweepSummary

MOST_CLASSES = 12
"""A matrix of more classes is not printed; the JSON has every one."""
CLASS_HEADS = ("class", "precision", "recall", "F1", "examples")
CLASSES_NOTE = (
    "Means over the finals, ×100. A row of a confusion matrix is a gold class, a column what was predicted: examples, "
    "the mean over the finals."
)


def class_sections(summary: SweepSummary) -> list[tuple[str, ClassScores]]:
    """(title, classes) of each cell with stored predictions of classes, in the order of the cells."""
    found = ((cell, cell_class_scores(cell, summary.folder)) for cell in summary.cells)
    return [(_title(cell, scores), scores) for cell, scores in found if scores is not None]


def _title(cell: CellSummary, scores: ClassScores) -> str:
    head = cell.header
    words = [head.encoder, title(head.mode), head.task, head.variant]
    return f"{' '.join(word for word in words if word)}, {scores.split}"


def class_rows(scores: ClassScores) -> list[list[str]]:
    """The cells under `CLASS_HEADS`."""
    return [
        [row.name, percent(row.precision), percent(row.recall), percent(row.f1), str(row.examples)]
        for row in scores.rows
    ]  # fmt: skip


def confusion_rows(scores: ClassScores) -> list[list[str]]:
    """The heads, then a row a gold class; empty where there is no matrix, or it is too large to read."""
    if scores.confusion is None or len(scores.labels) > MOST_CLASSES:
        return []
    heads = ["gold \\ predicted", *scores.labels]
    rows = zip(scores.labels, scores.confusion, strict=True)
    return [heads, *([name, *(f"{count:.1f}".removesuffix(".0") for count in row)] for name, row in rows)]


def class_document(scores: ClassScores | None) -> dict[str, Any] | None:
    """The classes for JSON; None where there are none."""
    if scores is None:
        return None
    return {
        "split": scores.split, "finals": scores.finals,
        "rows": [
            {"class": r.name, "precision": r.precision, "recall": r.recall, "f1": r.f1, "examples": r.examples}
            for r in scores.rows
        ],
        "confusion": None if scores.confusion is None else scores.confusion.tolist(),
    }  # fmt: skip
