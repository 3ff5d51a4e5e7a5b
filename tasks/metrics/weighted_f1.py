"""The mean of the F1 scores of the labels, each counting by its number of gold examples."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.tasks.core.metric import Metric, Prediction
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """As scikit-learn's `f1_score(average="weighted")`."""
    import numpy as np
    from sklearn.metrics import f1_score  # takes a second to import

    return float(f1_score(np.array(gold), np.array(predicted), average="weighted", zero_division=0))


METRIC = Metric("weighted_f1", ("label", "labels"), compute, "mean over the labels of F1, by their gold examples")
