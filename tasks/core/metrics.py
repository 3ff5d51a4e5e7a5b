"""The metrics: fractions from 0 to 1 (correlations from -1), higher is better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from meltpoint.tasks.core.counts import some
from meltpoint.tasks.core.spans import span_scores
from meltpoint.tasks.core.task import Kind, Label, Task

Prediction = int | float | list[int]
Floats = NDArray[np.float64]

CLASSIFICATION: tuple[Kind, ...] = ("sentence_classification", "pair_classification")


@dataclass(frozen=True)
class Metric:
    """One way to score.

    Attributes:
        name: its key in `METRICS`, in MLflow and in tables.
        kinds: the kinds of task that it fits.
        compute: (task, gold labels, predictions) → score; both non-empty, of equal length, checked before.
        two_classes: it needs exactly two labels; the second is the positive one.
    """

    name: str
    kinds: tuple[Kind, ...]
    compute: Callable[[Task, Sequence[Label], Sequence[Prediction]], float]
    two_classes: bool = False

    def fits(self, task: Task) -> bool:
        """Whether the metric can score the task."""
        return task.kind in self.kinds and (not self.two_classes or len(task.labels) == 2)


def score(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> dict[str, float]:
    """The task's metric first, then the ones that are shown beside it.

    Args:
        task: what was predicted.
        gold: the examples' labels, in order.
        predicted: a class id, a score, or a list of label ids (one a word) for each example.

    Raises:
        ValueError: nothing to score, unequal lengths, a hidden label, or a prediction that is no finite number.
    """
    _check(task, gold, predicted)
    beside = [name for name in BESIDE[task.kind] if name != task.metric and METRICS[name].fits(task)]
    return {name: METRICS[name].compute(task, gold, predicted) for name in [task.metric, *beside]}


def _check(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> None:
    if not gold or len(gold) != len(predicted):
        raise ValueError(
            f"{some(len(predicted), 'prediction')} for {some(len(gold), 'example')} of {task.name}; score each once."
        )
    if any(label is None for label in gold):
        raise ValueError(f"{task.name} cannot be scored: labels are hidden. Carve a labelled test with --test-from.")
    if task.kind == "sequence_labelling":
        pairs = zip(gold, predicted, strict=True)
        for position, (tags, found) in enumerate(pairs):
            lengths = len(cast(tuple[int, ...], tags)), len(cast(list[int], found))
            if lengths[0] != lengths[1]:
                raise ValueError(
                    f"{task.name}, sentence {position}: {some(lengths[1], 'label')} for {some(lengths[0], 'word')}."
                )
    elif not all(math.isfinite(cast(float, value)) for value in predicted):
        raise ValueError(f"A prediction for {task.name} is not a finite number; the training diverged.")


def correlation(left: Floats, right: Floats) -> float:
    """Pearson's correlation; 0 where either side is constant.

    Args:
        left, right: (examples,) float64.
    """
    if np.ptp(left) == 0 or np.ptp(right) == 0:
        return 0.0
    # Scaled before squaring, so that tiny or huge values neither vanish nor overflow.
    centred = [(side - side.mean()) / np.ptp(side) for side in (left, right)]
    lengths = [math.sqrt(float(side @ side)) for side in centred]
    return float(np.clip(float(centred[0] @ centred[1]) / (lengths[0] * lengths[1]), -1.0, 1.0))


def ranks(values: Floats) -> Floats:
    """Ranks from 1; equal values share the mean of theirs.

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
    right = int(np.sum((gold == label) & (predicted == label)))
    return 2 * right / int(np.sum(gold == label) + np.sum(predicted == label)) if right else 0.0


def _f1(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    return _f1_of(_array(gold), _array(predicted), 1)


def _macro_f1(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    wanted, found = _array(gold), _array(predicted)
    seen = [label for label in range(len(task.labels)) if label in wanted or label in found]
    return sum(_f1_of(wanted, found, label) for label in seen) / len(seen)


def _matthews(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """Gorodkin 2004's correlation for any number of classes, which is Matthews' for two."""
    classes = np.arange(len(task.labels))
    wanted = (_array(gold)[:, None] == classes).astype(np.float64)  # (examples, classes)
    found = (_array(predicted)[:, None] == classes).astype(np.float64)
    wanted -= wanted.mean(axis=0)
    found -= found.mean(axis=0)
    spread = math.sqrt(float(np.sum(wanted**2)) * float(np.sum(found**2)))
    return float(np.sum(wanted * found)) / spread if spread > 0 else 0.0


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
        Metric("accuracy", CLASSIFICATION, _accuracy),
        Metric("f1", CLASSIFICATION, _f1, two_classes=True),
        Metric("macro_f1", CLASSIFICATION, _macro_f1),
        Metric("matthews", CLASSIFICATION, _matthews),
        Metric("pearson", ("pair_regression",), _pearson),
        Metric("spearman", ("pair_regression",), _spearman),
        Metric("span_f1", ("sequence_labelling",), _span_f1),
        Metric("span_precision", ("sequence_labelling",), _span_precision),
        Metric("span_recall", ("sequence_labelling",), _span_recall),
        Metric("word_accuracy", ("sequence_labelling",), _word_accuracy),
    )
}

BESIDE: Mapping[Kind, tuple[str, ...]] = {
    "sentence_classification": ("accuracy",),
    "pair_classification": ("accuracy", "f1"),
    "pair_regression": ("pearson", "spearman"),
    "sequence_labelling": ("span_f1", "span_precision", "span_recall", "word_accuracy"),
}
"""What is shown beside a task's own metric, where it fits the task."""

DEFAULT: Mapping[Kind, str] = {kind: names[0] for kind, names in BESIDE.items()}
"""The metric of a kind of task whose file names none."""
