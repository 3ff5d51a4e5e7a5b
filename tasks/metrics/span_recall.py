"""The share of gold spans that are found, right in type and both ends; `span_recall.PER` is of one type."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from meltpoint.tasks.core.metric import Metric
from meltpoint.tasks.core.spans import span_scores
from meltpoint.tasks.core.task import Label, Task


def compute(task: Task, gold: Sequence[Label], predicted: Sequence[Any], kind: str | None = None) -> float:
    """Of all spans, or of those of one type."""
    tags: Sequence[Any] = gold
    return span_scores(tags, predicted, task.labels, kind).recall


METRIC = Metric(
    "span_recall", ("tags",), compute, "recall of spans; span_recall.TYPE is of one type",
    of_part=lambda kind: partial(compute, kind=kind),
)  # fmt: skip
