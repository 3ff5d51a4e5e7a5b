"""The share of words whose tag is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meltpoint.tasks.core.metric import Metric, floats
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Any]) -> float:
    """The share of equal tags."""
    sides: list[Sequence[Any]] = [gold, predicted]
    left, right = (floats([tag for tags in side for tag in tags]) for side in sides)
    return float((left == right).mean())


METRIC = Metric("word_accuracy", ("tags", "classes"), compute, "share of words with the right tag")
