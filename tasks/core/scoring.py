"""Scores of predictions by a task's metrics, shown in points of 100 or, for errors, in the task's own unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from meltpoint.tasks.core.metrics import METRICS, Prediction, is_lower_better
from meltpoint.tasks.core.task import Label, Task
from meltpoint.tasks.core.wording import some

Probabilities = Sequence[Sequence[float]]
"""The probability of each label, for each example."""


def score(
    task: Task, gold: Sequence[Label], predicted: Sequence[Prediction], probabilities: Probabilities = ()
) -> dict[str, float]:
    """Compute the task's metric, then the other metrics that are reported for it.

    Args:
        task: the task of the predictions.
        gold: the examples' labels, in order.
        predicted: a class id, a score, or a list of label ids (one per word) for each example.
        probabilities: the labels' probabilities, for metrics that rank by them; () if there are none.

    Raises:
        ValueError: no examples, unequal lengths, a hidden label, a non-finite prediction, or no probabilities for a
            metric that needs them.
    """
    _check(task, gold, predicted)
    return {name: _value(name, task, gold, predicted, probabilities) for name in scored_by(task)}


def value(
    name: str, task: Task, gold: Sequence[Label], predicted: Sequence[Prediction], probabilities: Probabilities = ()
) -> float:
    """One metric of predictions; see `score` for arguments and errors."""
    _check(task, gold, predicted)
    return _value(name, task, gold, predicted, probabilities)


def scored_by(task: Task) -> list[str]:
    """All metrics of a task's predictions: its own first, its kind's, then those in `also`."""
    return list(dict.fromkeys((task.metric, *reported(task), *task.beside)))


def reported(task: Task) -> list[str]:
    """The metrics that are reported for a task: F1 of the positive class of two, otherwise the mean over classes."""
    fitting = [name for name in task.of_kind.metrics if METRICS[name].fits(task)]
    return [name for name in fitting if name != "macro_f1" or "f1" not in fitting]


def needs_probabilities(task: Task) -> bool:
    """True if one of a task's metrics ranks by probabilities, so that predictions are stored with all digits."""
    return any(METRICS[name].of_probabilities for name in scored_by(task))


MINUS = "−"


def in_points(metric: str) -> bool:
    """True for a metric that is shown in points of 100; False for errors, which have the unit of a task's scores."""
    return not is_lower_better(metric)


def scale(metric: str) -> float:
    """The factor from a metric's scores to their shown values."""
    return 100.0 if in_points(metric) else 1.0


def axis_name(metric: str) -> str:
    """A metric's name on an axis: `accuracy ×100`, `mse`."""
    return f"{metric} ×100" if in_points(metric) else metric


def score_text(score: float, metric: str) -> str:
    """`85.1`, or `0.213` for an error; with a typographic minus, and no sign if it rounds to zero."""
    text = _digits(score, metric)
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", MINUS)


def difference_text(difference: float, metric: str) -> str:
    """`+1.2`, or `−0.013` for an error: a score's difference, with its sign."""
    text = score_text(difference, metric)
    return f"+{text}" if difference > 0 and text.strip("0.") else text


def scores_text(mean: float, deviation: float | None, metric: str) -> str:
    """`85.1 ± 0.3`: a mean over seeds; a single seed has no deviation."""
    return score_text(mean, metric) + ("" if deviation is None else f" ± {_digits(deviation, metric)}")


def unit_text(metric: str) -> str:
    """The unit of a metric's shown scores, in words."""
    return "in points of 100" if in_points(metric) else "in the unit of the task's scores"


def _digits(value: float, metric: str) -> str:
    if in_points(metric):
        return f"{100 * value:.1f}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def _value(
    name: str, task: Task, gold: Sequence[Label], predicted: Sequence[Prediction], probabilities: Probabilities
) -> float:
    metric = METRICS[name]
    if metric.of_probabilities and len(probabilities) != len(gold):
        raise ValueError(f"{name} of {task.name} needs probabilities, but there are none; choose another metric.")
    found = metric.compute(task, gold, probabilities if metric.of_probabilities else predicted)
    if not math.isfinite(found):  # a record cannot hold it, and it cannot be compared
        raise ValueError(f"{name} of {task.name} is {found} on {some(len(gold), 'example')}; it must be finite.")
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
