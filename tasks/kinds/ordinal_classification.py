"""One of several classes of one text that are in an order: stars, grades, levels of difficulty."""

from __future__ import annotations

from meltpoint.tasks.core.kind import TaskKind

KIND = TaskKind(
    name="ordinal_classification",
    input="sentence",
    target="grade",
    metrics=("quadratic_kappa", "accuracy", "mae", "spearman", "macro_f1"),
    summary="one of several ordered classes of one text",
)
