"""F1 of the second of two labels, the positive one."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.tasks.core.metric import Metric, Prediction, f1_of, floats
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """2 · hits / (gold + predicted) of label 1."""
    return f1_of(floats(gold), floats(predicted), 1)


METRIC = Metric("f1", ("label",), compute, "F1 of the second of two labels", two_classes=True)
