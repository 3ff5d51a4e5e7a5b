"""F1 of all decisions together, whatever their label; for one label an example it equals the accuracy."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.tasks.core.metric import Metric, Prediction
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """As scikit-learn's `f1_score(average="micro")`."""
    import numpy as np
    from sklearn.metrics import f1_score  # takes a second to import

    return float(f1_score(np.array(gold), np.array(predicted), average="micro", zero_division=0))


METRIC = Metric("micro_f1", ("label", "labels"), compute, "F1 of all decisions together")
