"""A tag for each word of a sentence: named entities and other spans, in IOB2."""

from __future__ import annotations

from meltpoint.tasks.core.kind import TaskKind

KIND = TaskKind(
    name="sequence_labelling",
    input="words",
    target="tags",
    metrics=("span_f1", "span_precision", "span_recall", "word_accuracy"),
    summary="spans of a sentence, as a tag for each word",
)
