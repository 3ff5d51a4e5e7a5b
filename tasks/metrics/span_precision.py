"""The share of predicted spans that are right in type and both ends; `span_precision.PER` is of one type."""

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
    return span_scores(tags, predicted, task.labels, kind).precision


METRIC = Metric(
    "span_precision", ("tags",), compute, "precision of spans; span_precision.TYPE is of one type",
    of_part=lambda kind: partial(compute, kind=kind),
)  # fmt: skip
