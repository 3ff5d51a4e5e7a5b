"""Matthews correlation, generalised to any number of classes (Gorodkin 2004)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meltpoint.tasks.core.metric import Metric, Prediction, floats
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The correlation of the indicators of the labels; 0 if either side is constant."""
    import numpy as np

    classes = np.arange(len(task.labels))
    left = (floats(gold)[:, None] == classes).astype(np.float64)  # (examples, classes)
    right = (floats(predicted)[:, None] == classes).astype(np.float64)
    left -= left.mean(axis=0)
    right -= right.mean(axis=0)
    scale = math.sqrt(float(np.sum(left**2)) * float(np.sum(right**2)))
    return float(np.sum(left * right)) / scale if scale > 0 else 0.0


METRIC = Metric("matthews", ("label",), compute, "Matthews correlation, of any number of labels", lowest=-1.0)
