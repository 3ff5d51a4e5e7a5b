"""One number of one text: politeness, readability, a price."""

from __future__ import annotations

from meltpoint.tasks.core.kind import TaskKind

KIND = TaskKind(
    name="sentence_regression",
    input="sentence",
    target="score",
    metrics=("pearson", "spearman", "mse", "mae"),
    summary="one number, in a range, of one text",
)
