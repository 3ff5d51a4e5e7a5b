"""Stored predictions of a task of any kind, in arrays, with the metrics that they give."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, FiniteFloat, model_validator

from meltpoint.sweeps.ledger.predictions import StoredExample, groups_of, read_lines, read_predictions
from meltpoint.sweeps.storage.files import StoragePath
from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.kinds import Target
from meltpoint.tasks.core.metrics import METRICS
from meltpoint.tasks.core.scoring import value
from meltpoint.tasks.core.task import Kind, Task

Numbers = NDArray[np.int32] | NDArray[np.float64]


@dataclass(frozen=True)
class ScoredExamples:
    """One finalist's predictions on one split.

    Attributes:
        kind: the task's kind.
        labels: the label names, in id order; of labelling, the tags that occur; empty for regression.
        gold, predicted: label ids or scores, (examples,); of labelling, (words,), sentence after sentence; of several
            labels, 0 or 1 for each, (examples, labels).
        lengths: the words of each sentence, for labelling, (sentences,); ones for the other kinds, (examples,).
        probabilities: of each label, (examples, labels) float64, where the file has them; else None.
        groups: the number of the group that each example belongs to, from 0, (examples,); None where the task has none.
        digest: of the examples' ids, gold labels and groups in their order: equal where two files may be paired.
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
            raise ValueError(f"{metric} is no metric of {self.kind.replace('_', ' ')} here; choose another.")
        shares = () if self.probabilities is None else self.probabilities.tolist()
        return value(metric, task, self.nested(self.gold), self.nested(self.predicted), shares)

    def only(self, drawn: NDArray[np.int64]) -> ScoredExamples:
        """The examples at these places, in that order; a place may occur more than once.

        Args:
            drawn: (examples,) places.
        """
        starts = np.cumsum(self.lengths) - self.lengths
        places = np.concatenate([np.arange(starts[at], starts[at] + self.lengths[at]) for at in drawn])
        return replace(
            self, gold=self.gold[places], predicted=self.predicted[places], lengths=self.lengths[drawn], digest="",
            probabilities=None if self.probabilities is None else self.probabilities[drawn],
            groups=None if self.groups is None else self.groups[drawn],
        )  # fmt: skip

    def nested(self, values: Numbers) -> list[Any]:
        """Gold or predictions as lists, an element an example."""
        if not kinds.get(self.kind).labels_words:
            return list(values.tolist())
        return [part.tolist() for part in np.split(values, np.cumsum(self.lengths)[:-1])]


def read_scored(path: StoragePath, kind: Kind) -> ScoredExamples:
    """Read one file of predictions.

    Raises:
        ValueError: it is missing, or a line is not an example with its gold label and its prediction.
    """
    return READERS[kinds.get(kind).target](path, kind)


class _Regressed(StoredExample):
    """A line of a regression task."""

    gold: FiniteFloat
    prediction: FiniteFloat


class _Labelled(StoredExample):
    """A line of a labelling task: a tag for each word of a sentence."""

    gold: tuple[str, ...]
    prediction: tuple[str, ...]

    @model_validator(mode="after")
    def _has_a_tag_for_each_word(self) -> Self:
        if len(self.gold) != len(self.prediction):
            raise ValueError("other numbers of tags")
        return self


def _classified(path: StoragePath, kind: Kind) -> ScoredExamples:
    read = read_predictions(path)
    gold, predicted = read.gold.astype(np.int32), read.predicted.astype(np.int32)
    digest = _digest(read.ids, [read.labels[label] for label in gold], read.groups)
    lengths, numbers = np.ones(len(gold), dtype=np.int64), _numbered(read.groups)
    return ScoredExamples(kind, read.labels, gold, predicted, lengths, digest, read.probabilities, numbers)


class _Several(StoredExample):
    """A line of a task with any number of labels an example."""

    gold: tuple[str, ...]
    prediction: tuple[str, ...]
    probabilities: dict[str, FiniteFloat] = Field(min_length=1)


def _with_labels(path: StoragePath, kind: Kind) -> ScoredExamples:
    lines = read_lines(path, _Several, "gold labels, predicted labels and probabilities")
    labels = tuple(lines[0].probabilities)
    if any(set(labels) < {*one.gold, *one.prediction} | one.probabilities.keys() for one in lines):
        raise ValueError(f"{path}: a line has a label that is not one of {', '.join(labels)}; restore the file.")
    gold, predicted = (
        np.array([[label in having for label in labels] for having in side], dtype=np.int32)
        for side in ([one.gold for one in lines], [one.prediction for one in lines])
    )
    shares = np.array([[one.probabilities[label] for label in labels] for one in lines], dtype=np.float64)
    groups, ones = groups_of(lines), np.ones(len(lines), dtype=np.int64)
    digest = _digest([one.id for one in lines], [one.gold for one in lines], groups)
    return ScoredExamples(kind, labels, gold, predicted, ones, digest, shares, _numbered(groups))


def _regressed(path: StoragePath, kind: Kind) -> ScoredExamples:
    lines = read_lines(path, _Regressed, "gold and prediction")
    gold, predicted = np.array([one.gold for one in lines]), np.array([one.prediction for one in lines])
    groups, ones = groups_of(lines), np.ones(len(lines), dtype=np.int64)
    digest = _digest([one.id for one in lines], gold.tolist(), groups)
    return ScoredExamples(kind, (), gold, predicted, ones, digest, groups=_numbered(groups))


def _labelled(path: StoragePath, kind: Kind) -> ScoredExamples:
    lines = read_lines(path, _Labelled, "gold and prediction, a tag a word")
    labels = tuple(sorted({tag for one in lines for tag in (*one.gold, *one.prediction)}))
    places = {label: place for place, label in enumerate(labels)}
    gold = np.array([places[tag] for one in lines for tag in one.gold], dtype=np.int32)
    predicted = np.array([places[tag] for one in lines for tag in one.prediction], dtype=np.int32)
    lengths = np.array([len(one.gold) for one in lines], dtype=np.int64)
    groups = groups_of(lines)
    digest = _digest([one.id for one in lines], [one.gold for one in lines], groups)
    return ScoredExamples(kind, labels, gold, predicted, lengths, digest, groups=_numbered(groups))


READERS: Mapping[Target, Callable[[StoragePath, Kind], ScoredExamples]] = {
    "label": _classified,
    "labels": _with_labels,
    "grade": _classified,
    "score": _regressed,
    "tags": _labelled,
    "classes": _labelled,
}


def _numbered(groups: Sequence[str] | None) -> NDArray[np.int64] | None:
    """Each group's number, in the order in which the groups occur."""
    if groups is None:
        return None
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    return np.array([numbers[group] for group in groups], dtype=np.int64)


def _digest(ids: Sequence[str], gold: Sequence[object], groups: Sequence[str] | None) -> str:
    parts = (tuple(ids), tuple(gold)) if groups is None else (tuple(ids), tuple(gold), tuple(groups))
    return hashlib.sha256(repr(parts).encode()).hexdigest()
