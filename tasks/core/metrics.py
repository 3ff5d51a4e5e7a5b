"""Evaluation metrics: fractions from 0 to 1 (correlations from -1); higher is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from meltpoint.tasks import kinds
from meltpoint.tasks.core.counts import some
from meltpoint.tasks.core.kind import Target
from meltpoint.tasks.core.spans import span_scores
from meltpoint.tasks.core.task import Kind, Label, Task

Prediction = int | float | list[int]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Metric:
    """An evaluation metric.

    Attributes:
        name: its key in `METRICS`, in MLflow and in tables.
        targets: what has to be predicted for it to apply.
        compute: (task, gold labels, predictions) → score; `score` has checked that both have the same length, not 0.
        two_classes: True if it needs exactly two labels, of which the second is the positive one.
    """

    name: str
    targets: tuple[Target, ...]
    compute: Callable[[Task, Sequence[Label], Sequence[Prediction]], float]
    two_classes: bool = False

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of task that it applies to."""
        return tuple(kind for kind in kinds.names() if kinds.get(kind).target in self.targets)

    def fits(self, task: Task) -> bool:
        """True if the metric applies to the task."""
        return self.serves(task.kind, len(task.labels))

    def serves(self, kind: Kind, labels: int) -> bool:
        """True if the metric applies to tasks of a kind with so many labels."""
        return kinds.get(kind).target in self.targets and (not self.two_classes or labels == 2)


def score(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> dict[str, float]:
    """Compute the task's metric, then the other metrics that are reported for its kind.

    Args:
        task: the task of the predictions.
        gold: the examples' labels, in order.
        predicted: a class id, a score, or a list of label ids (one per word) for each example.

    Raises:
        ValueError: no examples, unequal lengths, a hidden label, or a non-finite prediction.
    """
    _check(task, gold, predicted)
    others = [name for name in reported(task) if name != task.metric]
    return {name: METRICS[name].compute(task, gold, predicted) for name in [task.metric, *others]}


def reported(task: Task) -> list[str]:
    """The metrics that are reported for a task: F1 is that of the positive class of two, else the mean over classes."""
    fitting = [name for name in task.of_kind.metrics if METRICS[name].fits(task)]
    return [name for name in fitting if name != "macro_f1" or "f1" not in fitting]


def _check(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> None:
    if not gold or len(gold) != len(predicted):
        raise ValueError(
            f"{some(len(predicted), 'prediction')} for {some(len(gold), 'example')} of {task.name}; score each once."
        )
    if any(label is None for label in gold):
        raise ValueError(f"{task.name} cannot be scored: labels are hidden. Carve a labelled test with --test-from.")
    if task.of_kind.labels_words:
        pairs = zip(gold, predicted, strict=True)
        for position, (gold_tags, tags) in enumerate(pairs):
            lengths = len(cast(tuple[int, ...], gold_tags)), len(cast(list[int], tags))
            if lengths[0] != lengths[1]:
                raise ValueError(
                    f"{task.name}, sentence {position}: {some(lengths[1], 'label')} for {some(lengths[0], 'word')}."
                )
    elif not all(math.isfinite(cast(float, value)) for value in predicted):
        raise ValueError(f"A prediction for {task.name} is not a finite number; the training diverged.")


def correlation(left: Floats, right: Floats) -> float:
    """Pearson's correlation; 0 if either side is constant.

    Args:
        left, right: (examples,) float64.
    """
    if np.ptp(left) == 0 or np.ptp(right) == 0:
        return 0.0
    # Scaled before squaring, so that tiny values do not underflow and huge ones do not overflow.
    centred = [(side - side.mean()) / np.ptp(side) for side in (left, right)]
    lengths = [math.sqrt(float(side @ side)) for side in centred]
    return float(np.clip(float(centred[0] @ centred[1]) / (lengths[0] * lengths[1]), -1.0, 1.0))


def ranks(values: Floats) -> Floats:
    """Ranks from 1; ties get the mean of their ranks.

    Args:
        values: (examples,) float64.
    """
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks: Floats = np.cumsum(counts) - (counts - 1) / 2
    return mean_ranks[places]


def _array(values: Sequence[object]) -> Floats:
    return np.asarray(values, dtype=np.float64)


def _accuracy(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    return float(np.mean(_array(gold) == _array(predicted)))


def _f1_of(gold: Floats, predicted: Floats, label: int) -> float:
    hits = int(np.sum((gold == label) & (predicted == label)))
    return 2 * hits / int(np.sum(gold == label) + np.sum(predicted == label)) if hits else 0.0


def _f1(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    return _f1_of(_array(gold), _array(predicted), 1)


def _macro_f1(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    left, right = _array(gold), _array(predicted)
    present = [label for label in range(len(task.labels)) if label in left or label in right]
    return sum(_f1_of(left, right, label) for label in present) / len(present)


def _matthews(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """Matthews correlation, generalised to any number of classes (Gorodkin 2004)."""
    classes = np.arange(len(task.labels))
    left = (_array(gold)[:, None] == classes).astype(np.float64)  # (examples, classes)
    right = (_array(predicted)[:, None] == classes).astype(np.float64)
    left -= left.mean(axis=0)
    right -= right.mean(axis=0)
    scale = math.sqrt(float(np.sum(left**2)) * float(np.sum(right**2)))
    return float(np.sum(left * right)) / scale if scale > 0 else 0.0


def _pearson(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    return correlation(_array(gold), _array(predicted))


def _spearman(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    return correlation(ranks(_array(gold)), ranks(_array(predicted)))


def _tags(values: Sequence[object]) -> Sequence[Sequence[int]]:
    return cast(Sequence[Sequence[int]], values)


def _span_f1(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    return span_scores(_tags(gold), _tags(predicted), task.labels).f1


def _span_precision(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    return span_scores(_tags(gold), _tags(predicted), task.labels).precision


def _span_recall(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    return span_scores(_tags(gold), _tags(predicted), task.labels).recall


def _word_accuracy(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    flat = [[tag for tags in _tags(side) for tag in tags] for side in (gold, predicted)]
    return _accuracy(task, flat[0], flat[1])


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("accuracy", ("label",), _accuracy),
        Metric("f1", ("label",), _f1, two_classes=True),
        Metric("macro_f1", ("label",), _macro_f1),
        Metric("matthews", ("label",), _matthews),
        Metric("pearson", ("score",), _pearson),
        Metric("spearman", ("score",), _spearman),
        Metric("span_f1", ("tags",), _span_f1),
        Metric("span_precision", ("tags",), _span_precision),
        Metric("span_recall", ("tags",), _span_recall),
        Metric("word_accuracy", ("tags",), _word_accuracy),
    )
}


def default(kind: Kind) -> str:
    """The metric of a user's task whose file names none."""
    return kinds.get(kind).metrics[0]
