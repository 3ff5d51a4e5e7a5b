"""Reading the predictions that `worker.finalist_scoring` stores: `predictions/E.M.T.seedS.SPLIT.jsonl`.

Those of the published setting's finals are `predictions/E.M.T.default.seedS.SPLIT.jsonl`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from meltpoint.sweeps.ledger.records import TrialDescription
from meltpoint.sweeps.storage.files import StoragePath, contents
from meltpoint.tasks.core.files import MOST_DATA_BYTES
from meltpoint.tasks.core.scoring import score
from meltpoint.tasks.core.task import Kind, Task

Line = TypeVar("Line", bound=BaseModel)


def finalist_name(cell: str, record: TrialDescription) -> str:
    """The name of a finalist in the names of its files: `E.M.T.seed0`, or `E.M.T.default.seed0`.

    Args:
        cell: its cell's name (`cells.cell_name`).
    """
    return f"{cell}.default.seed{record.seed}" if record.role == "default" else f"{cell}.seed{record.seed}"


def predictions_path(sweep_folder: StoragePath, cell: str, record: TrialDescription, split: str) -> StoragePath:
    """The file of a finalist's predictions on a split, "dev" or "test"."""
    return sweep_folder / "predictions" / f"{finalist_name(cell, record)}.{split}.jsonl"


@dataclass(frozen=True)
class Predictions:
    """One finalist's predictions on one split of a classification task.

    Attributes:
        path: the file.
        ids: the examples' ids, in the split's order.
        labels: the label names, in id order.
        gold: label ids, (examples,) int64.
        predicted: label ids, (examples,) int64.
        probabilities: (examples, labels) float64, each rounded to six digits when it was stored.
        groups: of the examples, where the task has a column of groups (`Task.is_grouped`).
    """

    path: StoragePath
    ids: tuple[str, ...]
    labels: tuple[str, ...]
    gold: NDArray[np.int64]
    predicted: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    groups: tuple[str, ...] | None = None


def read_predictions(path: StoragePath) -> Predictions:
    """Read one file of predictions.

    Raises:
        ValueError: it is missing, or a line is not an example with its gold label and its probabilities.
    """
    documents = read_lines(path, _Example, "gold, prediction and probabilities")
    labels = tuple(documents[0].probabilities)
    places = {label: place for place, label in enumerate(labels)}
    try:
        return Predictions(
            path, tuple(document.id for document in documents), labels,
            np.array([places[document.gold] for document in documents], dtype=np.int64),
            np.array([places[document.prediction] for document in documents], dtype=np.int64),
            np.array([[d.probabilities[label] for label in labels] for d in documents], dtype=np.float64),
            groups_of(documents),
        )  # fmt: skip
    except KeyError as error:
        raise ValueError(f"{path}: the label {error} is not one of {', '.join(labels)}; restore the file.") from None


class StoredExample(BaseModel):
    """The fields that a line has of every kind of task; `group` where the task is grouped (`Task.is_grouped`)."""

    id: str
    group: str | None = None


def groups_of(lines: Sequence[StoredExample]) -> tuple[str, ...] | None:
    """The group of each example; None where a line has none, as in files of tasks without groups."""
    groups = [line.group for line in lines if line.group is not None]
    return tuple(groups) if len(groups) == len(lines) else None


class _Example(StoredExample):
    """A line: an example with its gold label, and what was predicted."""

    gold: str
    prediction: str
    probabilities: dict[str, FiniteFloat] = Field(min_length=1)


def read_lines(path: StoragePath, kind: type[Line], fields: str) -> list[Line]:
    """The lines of one file of predictions.

    Args:
        kind: the model of a line.
        fields: what a line has, for the error.

    Raises:
        ValueError: the file is missing, or a line is not of that kind.
    """
    try:
        text = contents(path, MOST_DATA_BYTES).decode("utf-8")
    except FileNotFoundError:
        raise ValueError(f"{path} is missing; restore it, or leave that cell out.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8; restore the file.") from None
    lines = text.removesuffix("\n").split("\n")  # `splitlines` would also split at separators inside ids
    return [_line(path, number, line, kind, fields) for number, line in enumerate(lines, 1)]


def _line(path: StoragePath, number: int, line: str, kind: type[Line], fields: str) -> Line:
    try:
        return kind.model_validate_json(line)
    except ValidationError:
        raise ValueError(f"{path}, line {number}: not an example with {fields}; restore it.") from None


def check_aligned(members: Sequence[Predictions]) -> None:
    """Check that all predictions are of the same examples in the same order, with the same labels.

    Raises:
        ValueError: two files differ; the message names them and the difference.
    """
    first = members[0]
    for other in members[1:]:
        both = f"{first.path} and {other.path}"
        if first.labels != other.labels:
            raise ValueError(f"{both} have other labels; combine cells of one task.")
        if len(first.ids) != len(other.ids):
            raise ValueError(
                f"{both} differ in length ({len(first.ids)} and {len(other.ids)}); combine cells of one data set."
            )
        pairs = enumerate(zip(first.ids, other.ids, first.gold, other.gold, strict=True), 1)
        line = next((number for number, (a, b, gold, other_gold) in pairs if a != b or gold != other_gold), None)
        if line is not None:
            raise ValueError(f"{both} differ in the id or gold label of line {line}; combine cells of one data set.")


def averaged(members: Sequence[Predictions]) -> NDArray[np.int64]:
    """The label id with the highest mean probability for each example, (examples,); the first one in a tie."""
    mean = np.mean([member.probabilities for member in members], axis=0)  # (examples, labels)
    predicted: NDArray[np.int64] = mean.argmax(axis=1)
    return predicted


def scores(
    kind: Kind, metric: str, members: Sequence[Predictions], predicted: NDArray[np.int64], beside: Sequence[str] = ()
) -> dict[str, float]:
    """The metrics of predicted label ids on the members' gold labels: the task's main metric first, then the others.

    Args:
        beside: further metrics (`Task.beside`).
    """
    first = members[0]
    # Not read from the task's file, which may have been removed: a score needs only kind, metric and labels.
    task = Task(
        name=first.path.name, kind=kind, metric=metric, folder="", readers={}, labels=first.labels, beside=tuple(beside)
    )
    shares = members[0].probabilities if len(members) == 1 else np.mean([one.probabilities for one in members], axis=0)
    return score(task, first.gold.tolist(), predicted.tolist(), shares.tolist())
