"""Cohen's kappa with quadratic weights (Cohen 1968): agreement beyond chance, by the square of the distance of classes.

It is the usual metric of essay and star scores. Where both sides have one and the same class it is undefined, and 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from meltpoint.tasks.core.metric import Metric, Prediction
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """By scikit-learn's `cohen_kappa_score`."""
    from sklearn.metrics import cohen_kappa_score  # takes a second to import

    if len({*gold, *predicted}) < 2:
        return 0.0
    kappa = float(cohen_kappa_score(list(gold), list(predicted), weights="quadratic", labels=range(len(task.labels))))
    return 0.0 if math.isnan(kappa) else kappa


METRIC = Metric("quadratic_kappa", ("grade",), compute, "Cohen's kappa with quadratic weights", lowest=-1.0)
