"""The mean absolute error of scores, in their unit, or of ordered classes, in classes; lower is better."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.tasks.core.metric import Metric, Prediction, floats
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The mean of the absolute differences."""
    return float(abs(floats(gold) - floats(predicted)).mean())


METRIC = Metric("mae", ("score", "grade"), compute, "mean absolute error; lower is better", lower_is_better=True)
