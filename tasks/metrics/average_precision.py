"""The area under the precision-recall curve, without interpolation.

Of two labels it is that of the second one; of more, and of several labels an example, the mean over the labels of each
against the rest. A label without an example counts 0, as in scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meltpoint.tasks.core.metric import Metric, floats
from meltpoint.tasks.core.task import Label, Task
from meltpoint.tasks.metrics.roc_auc import positives, ranked


def compute(task: Task, gold: Sequence[Label], probabilities: Sequence[Any]) -> float:
    """The mean over the labels, by scikit-learn's `average_precision_score` of each."""
    import numpy as np
    from sklearn.metrics import average_precision_score  # takes a second to import

    columns = positives(task, gold)
    shares = floats(probabilities)
    chosen = ranked(task, gold)
    areas = [
        float(average_precision_score(columns[:, label], shares[:, label])) if columns[:, label].any() else 0.0
        for label in chosen
    ]
    return float(np.mean(areas))


METRIC = Metric(
    "average_precision", ("label", "labels"), compute,
    "area under the precision-recall curve; of several labels the mean, each against the rest", of_probabilities=True,
)  # fmt: skip
