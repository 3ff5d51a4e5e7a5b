"""The mean absolute error of scores, in their unit; lower is better."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meltpoint.tasks.core.metric import Metric, Prediction, floats
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The mean of the absolute differences."""
    return float(np.mean(np.abs(floats(gold) - floats(predicted))))


METRIC = Metric("mae", ("score",), compute, "mean absolute error; lower is better", lower_is_better=True)
