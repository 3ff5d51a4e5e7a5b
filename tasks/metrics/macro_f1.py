"""The mean of the F1 scores of the labels, each counting alike."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.tasks.core.metric import Metric, Prediction, f1_of, floats
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The mean over the labels that occur in gold or predictions, as scikit-learn's; of several labels, over all."""
    left, right = floats(gold), floats(predicted)
    if left.ndim == 2:
        return sum(f1_of(*columns, 1) for columns in zip(left.T, right.T, strict=True)) / len(task.labels)
    present = [label for label in range(len(task.labels)) if label in left or label in right]
    return sum(f1_of(left, right, label) for label in present) / len(present)


METRIC = Metric("macro_f1", ("label", "labels", "grade"), compute, "mean over the labels of F1")
