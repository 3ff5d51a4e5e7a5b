"""One number of a pair of texts: similarity, relatedness."""

from __future__ import annotations

from meltpoint.tasks.core.kind import TaskKind

KIND = TaskKind(
    name="pair_regression",
    input="pair",
    target="score",
    metrics=("pearson", "spearman"),
    summary="one number, in a range, of two texts",
)
