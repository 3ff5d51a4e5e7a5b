"""The mean of the recalls of the labels (Brodersen et al. 2010)."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.tasks.core.metric import Metric, Prediction, floats
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The mean over the labels that occur in gold, as scikit-learn's `balanced_accuracy_score`."""
    import numpy as np

    left, right = floats(gold), floats(predicted)
    return float(np.mean([np.mean(right[left == label] == label) for label in np.unique(left)]))


METRIC = Metric("balanced_accuracy", ("label", "grade"), compute, "mean over the labels of recall")
