"""Predictions of finalists: their files, and the examples with their gold labels.

Predictions of the published setting's finals are in `predictions/E.M.T.default.seedS.SPLIT.jsonl`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, FiniteFloat, ValidationError, model_validator

from meltpoint.sweeps.ledger.records import Trial
from meltpoint.sweeps.storage.files import StoragePath, contents
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.files import MOST_DATA_BYTES
from meltpoint.tasks.core.kinds import Target
from meltpoint.tasks.core.metrics import METRICS
from meltpoint.tasks.core.scoring import value
from meltpoint.tasks.core.task import Kind, Task

Line = TypeVar("Line", bound=BaseModel)


def finalist_name(cell: str, record: Trial) -> str:
    """A finalist's name, as its files are named: `E.M.T.seed0`, or `E.M.T.default.seed0`.

    Args:
        cell: its cell's name (`cells.cell_name`).
    """
    return f"{cell}.default.seed{record.seed}" if record.role == "default" else f"{cell}.seed{record.seed}"


def predictions_path(sweep_folder: StoragePath, cell: str, record: Trial, split: str) -> StoragePath:
    """The file of a finalist's predictions on a split: "dev", "test", or a further test split (`also_split`)."""
    return sweep_folder / "predictions" / f"{finalist_name(cell, record)}.{split}.jsonl"


def also_split(name: str) -> str:
    """The name in files of a further test split (`Task.also_test`)."""
    return f"test.{name}"


class StoredExample(BaseModel):
    """The fields of a line for every kind of task; `group` only for grouped tasks (`Task.is_grouped`)."""

    id: str
    group: str | None = None


def groups_of(lines: Sequence[StoredExample]) -> tuple[str, ...] | None:
    """The group of each example; None if a line has no group, as for tasks without groups."""
    groups = [line.group for line in lines if line.group is not None]
    return tuple(groups) if len(groups) == len(lines) else None


class _Example(StoredExample):
    """A line: an example with its gold label and its prediction."""

    gold: str
    prediction: str
    probabilities: dict[str, FiniteFloat] = Field(min_length=1)


def read_lines(path: StoragePath, kind: type[Line], fields: str) -> list[Line]:
    """The lines of one prediction file.

    Args:
        kind: the model of a line.
        fields: the expected fields, for the error message.

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
        raise ValueError(f"{path}, line {number}: not an example with {fields}; restore the file.") from None


Numbers = NDArray[np.int32] | NDArray[np.float64]


@dataclass(frozen=True)
class ScoredExamples:
    """One finalist's predictions on one split.

    Attributes:
        kind: the task's kind.
        labels: the label names, in id order; for labelling, the tags that occur; empty for regression.
        gold, predicted: label ids or scores, (examples,); for labelling, (words,), sentence after sentence; for
            multi-label tasks, 0 or 1 for each label, (examples, labels).
        lengths: the number of words in each sentence, for labelling, (sentences,); ones for other kinds, (examples,).
        probabilities: of each label, (examples, labels) float64, if the file has them; otherwise None.
        groups: the group index of each example, from 0, (examples,); None if the task has no groups.
        digest: of the examples' ids, gold labels and groups in order; equal if two files may be paired.
    """

    kind: Kind
    labels: tuple[str, ...]
    gold: Numbers
    predicted: Numbers
    lengths: NDArray[np.int64]
    digest: str = ""
    probabilities: NDArray[np.float64] | None = None
    groups: NDArray[np.int64] | None = None

    @property
    def count(self) -> int:
        """The number of examples: sentences, for labelling."""
        return len(self.lengths)

    def score(self, metric: str) -> float:
        """A metric of the predictions (`tasks.core.metrics`).

        Raises:
            ValueError: no metric of that name applies, or there are no examples.
        """
        task = Task(name="predictions", kind=self.kind, metric=metric, folder="", readers={}, labels=self.labels)
        if metric not in METRICS or not METRICS[metric].fits(task):
            raise ValueError(f"{metric} is not a metric of {self.kind.replace('_', ' ')} here; choose another.")
        shares = () if self.probabilities is None else self.probabilities.tolist()
        return value(metric, task, self.nested(self.gold), self.nested(self.predicted), shares)

    def nested(self, values: Numbers) -> list[Any]:
        """Gold or predictions as lists, one element per example."""
        if not kinds.get(self.kind).labels_words:
            return list(values.tolist())
        return [part.tolist() for part in np.split(values, np.cumsum(self.lengths)[:-1])]


def read_scored(path: StoragePath, kind: Kind) -> ScoredExamples:
    """Read one prediction file.

    Raises:
        ValueError: it is missing, or a line is not an example with its gold label and its prediction.
    """
    return READERS[kinds.get(kind).target](path, kind)


class _Regressed(StoredExample):
    """A line of a regression task."""

    gold: FiniteFloat
    prediction: FiniteFloat


class _Labelled(StoredExample):
    """A line of a labelling task: one tag per word of a sentence."""

    gold: tuple[str, ...]
    prediction: tuple[str, ...]

    @model_validator(mode="after")
    def _has_a_tag_for_each_word(self) -> Self:
        if len(self.gold) != len(self.prediction):
            raise ValueError("gold and prediction differ in their number of tags")
        return self


def _classified(path: StoragePath, kind: Kind) -> ScoredExamples:
    lines = read_lines(path, _Example, "gold, prediction and probabilities")
    labels = tuple(lines[0].probabilities)
    places = {label: place for place, label in enumerate(labels)}
    try:
        gold = np.array([places[one.gold] for one in lines], dtype=np.int32)
        predicted = np.array([places[one.prediction] for one in lines], dtype=np.int32)
        shares = np.array([[one.probabilities[label] for label in labels] for one in lines], dtype=np.float64)
    except KeyError as error:
        raise ValueError(f"{path}: the label {error} is not one of {', '.join(labels)}; restore the file.") from None
    return _scored(kind, labels, lines, gold, predicted, probabilities=shares)


class _Several(StoredExample):
    """A line of a multi-label task."""

    gold: tuple[str, ...]
    prediction: tuple[str, ...]
    probabilities: dict[str, FiniteFloat] = Field(min_length=1)


def _with_labels(path: StoragePath, kind: Kind) -> ScoredExamples:
    lines = read_lines(path, _Several, "gold labels, predicted labels and probabilities")
    labels = tuple(lines[0].probabilities)
    if any({*one.gold, *one.prediction} - {*labels} or one.probabilities.keys() != {*labels} for one in lines):
        raise ValueError(f"{path}: a line's labels are not {', '.join(labels)}; restore the file.")
    gold, predicted = (
        np.array([[label in having for label in labels] for having in side], dtype=np.int32)
        for side in ([one.gold for one in lines], [one.prediction for one in lines])
    )
    shares = np.array([[one.probabilities[label] for label in labels] for one in lines], dtype=np.float64)
    return _scored(kind, labels, lines, gold, predicted, probabilities=shares)


def _regressed(path: StoragePath, kind: Kind) -> ScoredExamples:
    lines = read_lines(path, _Regressed, "gold and prediction")
    return _scored(kind, (), lines, np.array([one.gold for one in lines]), np.array([one.prediction for one in lines]))


def _labelled(path: StoragePath, kind: Kind) -> ScoredExamples:
    lines = read_lines(path, _Labelled, "gold and prediction, one tag per word")
    labels = tuple(sorted({tag for one in lines for tag in (*one.gold, *one.prediction)}))
    places = {label: place for place, label in enumerate(labels)}
    gold = np.array([places[tag] for one in lines for tag in one.gold], dtype=np.int32)
    predicted = np.array([places[tag] for one in lines for tag in one.prediction], dtype=np.int32)
    return _scored(kind, labels, lines, gold, predicted, lengths=[len(one.gold) for one in lines])


def _scored(
    kind: Kind, labels: tuple[str, ...], lines: Sequence[Any], gold: Numbers, predicted: Numbers,
    lengths: Sequence[int] = (), probabilities: NDArray[np.float64] | None = None,
) -> ScoredExamples:  # fmt: skip
    """The examples of a file's lines; without `lengths`, each example has one gold value."""
    groups, indices = groups_of(lines), None
    parts: tuple[tuple[object, ...], ...] = tuple(one.id for one in lines), tuple(one.gold for one in lines)
    if groups is not None:
        parts = (*parts, groups)
        numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}  # in order of first occurrence
        indices = np.array([numbers[group] for group in groups], dtype=np.int64)
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()
    counts = np.array(lengths or [1] * len(lines), dtype=np.int64)
    return ScoredExamples(kind, labels, gold, predicted, counts, digest, probabilities, indices)


READERS: Mapping[Target, Callable[[StoragePath, Kind], ScoredExamples]] = {
    "label": _classified,
    "labels": _with_labels,
    "grade": _classified,
    "score": _regressed,
    "tags": _labelled,
    "classes": _labelled,
}
