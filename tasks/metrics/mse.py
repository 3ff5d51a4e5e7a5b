"""The mean squared error of scores, in the square of their unit, or of ordered classes; lower is better."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.tasks.core.metric import Metric, Prediction, floats
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The mean of the squared differences."""
    return float(((floats(gold) - floats(predicted)) ** 2).mean())


METRIC = Metric("mse", ("score", "grade"), compute, "mean squared error; lower is better", lower_is_better=True)
