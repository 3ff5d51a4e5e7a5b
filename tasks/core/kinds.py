"""Kinds of task: the contents of an example, the quantity that is predicted, and the metrics that are reported.

A new kind is one entry of `BUILT_IN`; its name is `kind:` in a task file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Literal

from meltpoint.tasks.core import registry

Input = Literal["sentence", "pair", "words"]
"""The contents of an example: one text, two texts, or the words of a sentence."""

Target = Literal["label", "labels", "grade", "score", "tags", "classes"]
"""The quantity that is predicted: one label, any number of labels, one of several ordered labels, one number in a
range, a tag for each word that marks spans, or a class for each word; `adapters/objectives.py` has a loss for each."""

INPUT_COLUMNS: dict[Input, tuple[str, ...]] = {"sentence": ("text",), "pair": ("text_a", "text_b"), "words": ("words",)}
WORDS, TAGS, LABEL = "words", "tags", "label"
GROUP, DOCUMENT = "group", "document"
"""The key of an example's group in `columns`, for every kind, and the value of this key for column files."""


@dataclass(frozen=True)
class TaskKind:
    """A kind of task.

    Attributes:
        name: its name, which is `kind:` in a task file.
        input: the contents of an example.
        target: the quantity that is predicted.
        metrics: the metrics that are reported by default; the first is a task's default metric.
    """

    name: str
    input: Input
    target: Target
    metrics: tuple[str, ...]

    @property
    def words(self) -> str:
        """Its name in words, for messages."""
        return self.name.replace("_", " ")

    @property
    def labels_words(self) -> bool:
        """True if every word of an example is labelled."""
        return self.input == "words"

    @property
    def has_spans(self) -> bool:
        """True if the words' tags mark spans, in IOB2."""
        return self.target == "tags"

    @property
    def is_pair(self) -> bool:
        """True if examples are pairs of texts."""
        return self.input == "pair"

    @property
    def is_regression(self) -> bool:
        """True if a number in a range is predicted."""
        return self.target == "score"

    @property
    def has_labels(self) -> bool:
        """True if an example may have any number of labels: 0 or 1 for each."""
        return self.target == "labels"

    @property
    def gives_probabilities(self) -> bool:
        """True if a model gives a probability of each label."""
        return self.target in ("label", "labels", "grade")

    def outputs(self, labels: int) -> int:
        """The number of a head's scores for this many labels: one per label or step of grades, one for a number."""
        return max(1, labels - 1 if self.target == "grade" else labels)

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys of `columns` in a task file."""
        return (*INPUT_COLUMNS[self.input], TAGS if self.labels_words else LABEL)

    @property
    def label_column(self) -> str:
        """The key of `columns` for the target."""
        return self.columns[-1]


BUILT_IN: dict[str, TaskKind] = {
    kind.name: kind
    for kind in (
        # Emotions, topics, toxicity.
        TaskKind("multi_label_classification", "sentence", "labels",
                 ("micro_f1", "macro_f1", "average_precision", "subset_accuracy")),
        # Stars, grades, levels of difficulty.
        TaskKind("ordinal_classification", "sentence", "grade",
                 ("quadratic_kappa", "accuracy", "mae", "spearman", "macro_f1")),
        # Entailment, paraphrase.
        TaskKind("pair_classification", "pair", "label", ("accuracy", "f1", "macro_f1")),
        # Similarity, relatedness.
        TaskKind("pair_regression", "pair", "score", ("pearson", "spearman")),
        # Sentiment, topics, acceptability.
        TaskKind("sentence_classification", "sentence", "label", ("accuracy", "f1", "macro_f1")),
        # Politeness, readability, a price.
        TaskKind("sentence_regression", "sentence", "score", ("pearson", "spearman", "mse", "mae")),
        # Named entities and other spans, in IOB2.
        TaskKind("sequence_labelling", "words", "tags", ("span_f1", "span_precision", "span_recall", "word_accuracy")),
        # Parts of speech, morphology, languages of words: classes that do not form spans.
        TaskKind("word_tagging", "words", "classes", ("word_accuracy",)),
    )
}  # fmt: skip


def names() -> tuple[str, ...]:
    """The names of the kinds, in alphabetical order."""
    return tuple(sorted(BUILT_IN))


def get(name: str) -> TaskKind:
    """The kind with a name.

    Raises:
        ValueError: the name is unknown; close matches are listed.
    """
    if name not in BUILT_IN:
        raise registry.unknown(name, "kind", BUILT_IN)
    return BUILT_IN[name]


@cache
def reading(*inputs: Input) -> tuple[str, ...]:
    """The names of the kinds whose examples have one of these inputs."""
    return tuple(name for name in names() if BUILT_IN[name].input in inputs)
