"""Scores of predictions by a task's metrics: fractions (correlations from -1), or errors in the unit of its scores."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from meltpoint.tasks import kinds, metrics
from meltpoint.tasks.core.metric import Metric, Prediction
from meltpoint.tasks.core.task import Kind, Label, Task
from meltpoint.tasks.core.wording import some

Probabilities = Sequence[Sequence[float]]
"""Of each example, the probability of each label."""


class _Metrics(Mapping[str, Metric]):
    """Name → metric, read from `tasks/metrics/` when it is asked for; `NAME.PART` is a metric of one part."""

    def __getitem__(self, name: str) -> Metric:
        base, _, part = name.partition(".")
        if base not in metrics.names():
            raise KeyError(name)
        metric = metrics.get(base)
        if not part:
            return metric
        if metric.of_part is None:
            raise KeyError(name)
        return replace(metric, name=name, compute=metric.of_part(part), of_part=None)

    def __iter__(self) -> Iterator[str]:
        return iter(metrics.names())

    def __len__(self) -> int:
        return len(metrics.names())


METRICS: Mapping[str, Metric] = _Metrics()


def score(
    task: Task, gold: Sequence[Label], predicted: Sequence[Prediction], probabilities: Probabilities = ()
) -> dict[str, float]:
    """Compute the task's metric, then the other metrics that are reported for it.

    Args:
        task: the task of the predictions.
        gold: the examples' labels, in order.
        predicted: a class id, a score, or a list of label ids (one per word) for each example.
        probabilities: of the labels, for metrics that rank by them; () where the task has none.

    Raises:
        ValueError: no examples, unequal lengths, a hidden label, a non-finite prediction, or no probabilities for a
            metric that needs them.
    """
    _check(task, gold, predicted)
    return {name: _value(name, task, gold, predicted, probabilities) for name in scored_by(task)}


def value(
    name: str, task: Task, gold: Sequence[Label], predicted: Sequence[Prediction], probabilities: Probabilities = ()
) -> float:
    """One metric of predictions; arguments and errors as of `score`."""
    _check(task, gold, predicted)
    return _value(name, task, gold, predicted, probabilities)


def scored_by(task: Task) -> list[str]:
    """All metrics of a task's predictions: its own first, those of its kind, and those that it names beside."""
    return list(dict.fromkeys((task.metric, *reported(task), *task.beside)))


def reported(task: Task) -> list[str]:
    """The metrics that are reported for a kind: F1 is that of the positive class of two, else the mean over classes."""
    fitting = [name for name in task.of_kind.metrics if METRICS[name].fits(task)]
    return [name for name in fitting if name != "macro_f1" or "f1" not in fitting]


def default(kind: Kind) -> str:
    """The metric of a user's task whose file names none."""
    return kinds.get(kind).metrics[0]


def needs_probabilities(task: Task) -> bool:
    """True if one of a task's metrics ranks by probabilities, so that predictions are stored with all digits."""
    return any(METRICS[name].of_probabilities for name in scored_by(task))


@functools.cache  # asked for each of a hundred thousand records
def is_lower_better(name: str) -> bool:
    """True of errors. False of a metric that this version does not know, as of all that older ones had."""
    return name in METRICS and METRICS[name].lower_is_better


@functools.cache
def limits(name: str) -> tuple[float, float]:
    """The lowest and highest value of a metric; no limits of one that this version does not know."""
    if name not in METRICS:
        return (-math.inf, math.inf)
    return (METRICS[name].lowest, math.inf if is_lower_better(name) else 1.0)


def gain(name: str, value: float) -> float:
    """A value or a difference by a metric, with the sign that makes higher better: the one to maximise and compare."""
    return -value if is_lower_better(name) else value


def _value(
    name: str, task: Task, gold: Sequence[Label], predicted: Sequence[Prediction], probabilities: Probabilities
) -> float:
    metric = METRICS[name]
    if metric.of_probabilities and len(probabilities) != len(gold):
        raise ValueError(f"{name} of {task.name} is of probabilities, and there are none; take another metric.")
    found = metric.compute(task, gold, probabilities if metric.of_probabilities else predicted)
    if not math.isfinite(found):  # no record could hold it, and no best be chosen by it
        raise ValueError(f"{name} of {task.name} is {found} on {some(len(gold), 'example')}; it has to be a number.")
    return found


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
    elif not all(map(_is_finite, predicted)):
        raise ValueError(f"A prediction for {task.name} is not a finite number; the training diverged.")


def _is_finite(predicted: Any) -> bool:
    return math.isfinite(predicted) if isinstance(predicted, int | float) else all(map(math.isfinite, predicted))
