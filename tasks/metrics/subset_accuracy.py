"""The share of examples of which exactly the right labels are predicted, none missing and none too many."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.tasks.core.metric import Metric, Prediction, floats
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The share of equal rows, as scikit-learn's `accuracy_score` of indicators."""
    return float((floats(gold) == floats(predicted)).all(axis=1).mean())


METRIC = Metric("subset_accuracy", ("labels",), compute, "share of examples with exactly the right labels")
