"""Pearson's correlation of scores; 0 if either side is constant."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.tasks.core.metric import Metric, Prediction, correlation, floats
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The correlation of the values."""
    return correlation(floats(gold), floats(predicted))


METRIC = Metric("pearson", ("score", "grade"), compute, "linear correlation", lowest=-1.0)
