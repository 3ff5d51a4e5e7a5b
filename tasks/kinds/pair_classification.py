"""One class of a pair of texts: entailment, paraphrase."""

from __future__ import annotations

from meltpoint.tasks.core.kind import TaskKind

KIND = TaskKind(
    name="pair_classification",
    input="pair",
    target="label",
    metrics=("accuracy", "f1", "macro_f1"),
    summary="one class of two texts",
)
