"""Spearman's correlation: Pearson's of the ranks, ties having the mean of theirs; 0 if either side is constant."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.tasks.core.metric import Metric, Prediction, correlation, floats, ranks
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Prediction]) -> float:
    """The correlation of the ranks."""
    return correlation(ranks(floats(gold)), ranks(floats(predicted)))


METRIC = Metric("spearman", ("score", "grade"), compute, "correlation of the ranks", lowest=-1.0)
