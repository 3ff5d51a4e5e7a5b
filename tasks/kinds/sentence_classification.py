"""One class of one text: sentiment, topics, acceptability."""

from __future__ import annotations

from meltpoint.tasks.core.kind import TaskKind

KIND = TaskKind(
    name="sentence_classification",
    input="sentence",
    target="label",
    metrics=("accuracy", "f1", "macro_f1"),
    summary="one class of one text",
)
