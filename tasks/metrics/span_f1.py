"""F1 of spans that are right in type and both ends, as `conlleval` and seqeval count them.

`span_f1.PER` is that of the spans of one type.
"""

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
    return span_scores(tags, predicted, task.labels, kind).f1


METRIC = Metric(
    "span_f1", ("tags",), compute, "F1 of spans; span_f1.TYPE is of one type",
    of_part=lambda kind: partial(compute, kind=kind),
)  # fmt: skip
