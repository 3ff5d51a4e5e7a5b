"""A class for each word of a sentence, which is no part of a span: parts of speech, morphology, languages of words."""

from __future__ import annotations

from meltpoint.tasks.core.kind import TaskKind

KIND = TaskKind(
    name="word_tagging",
    input="words",
    target="classes",
    metrics=("word_accuracy",),
    summary="a class for each word of a sentence",
)
