"""Any number of labels of one text, none among them: emotions, topics, toxicity."""

from __future__ import annotations

from meltpoint.tasks.core.kind import TaskKind

KIND = TaskKind(
    name="multi_label_classification",
    input="sentence",
    target="labels",
    metrics=("micro_f1", "macro_f1", "average_precision", "subset_accuracy"),
    summary="any number of labels of one text",
)
