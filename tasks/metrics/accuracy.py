"""The share of examples whose label is right."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.tasks.core.metric import Metric, Prediction, floats
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The share of equal labels."""
    return float((floats(gold) == floats(predicted)).mean())


METRIC = Metric("accuracy", ("label", "grade"), compute, "share of right labels")
