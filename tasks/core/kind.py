"""The type of a kind of task: what an example holds, what is predicted of it, and which metrics are reported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Input = Literal["sentence", "pair", "words"]
"""What an example holds: one text, two texts, or the words of a sentence."""

Target = Literal["label", "labels", "grade", "score", "tags", "classes"]
"""What is predicted: one label, any number of labels, one of several ordered labels, one number in a range, a tag for
each word, of spans, or a class for each word; each has a loss in `adapters/objectives/`."""

INPUT_COLUMNS: dict[Input, tuple[str, ...]] = {"sentence": ("text",), "pair": ("text_a", "text_b"), "words": ("words",)}
TAGS, LABEL = "tags", "label"
GROUP, DOCUMENT = "group", "document"
"""The key of an example's group in `columns`, for every kind, and its value for column files."""


@dataclass(frozen=True)
class TaskKind:
    """A kind of task.

    Attributes:
        name: its module's name, which is `kind:` in a task file.
        input: what an example holds.
        target: what is predicted of it.
        metrics: the metrics that are reported where a task says nothing else; the first is the default one.
        summary: one line for people.
    """

    name: str
    input: Input
    target: Target
    metrics: tuple[str, ...]
    summary: str

    @property
    def words(self) -> str:
        """Its name in words, for messages."""
        return self.name.replace("_", " ")

    @property
    def labels_words(self) -> bool:
        """True if examples are sentences of words, each of which is labelled."""
        return self.input == "words"

    @property
    def has_spans(self) -> bool:
        """True if the words' tags are of spans, in IOB2."""
        return self.target == "tags"

    @property
    def is_pair(self) -> bool:
        """True if examples are pairs of texts."""
        return self.input == "pair"

    @property
    def texts(self) -> int:
        """The number of an example's texts: 1, 2, or 0 where it is words."""
        return {"sentence": 1, "pair": 2, "words": 0}[self.input]

    @property
    def is_regression(self) -> bool:
        """True if a number in a range is predicted."""
        return self.target == "score"

    @property
    def has_distribution(self) -> bool:
        """True if a model gives a distribution over labels of which the likeliest is predicted."""
        return self.target == "label"

    @property
    def has_labels(self) -> bool:
        """True if an example may have any number of labels: it is then 0 or 1 for each."""
        return self.target == "labels"

    @property
    def gives_probabilities(self) -> bool:
        """True if a model gives a probability of each label."""
        return self.target in ("label", "labels", "grade")

    @property
    def fits_folders(self) -> bool:
        """True if a folder of texts for each label can hold its examples."""
        return self.input == "sentence" and self.target in ("label", "grade")

    def outputs(self, labels: int) -> int:
        """The number of a head's scores for so many labels: one each, one step less of grades, one of a number."""
        return max(1, labels - 1 if self.target == "grade" else labels)

    @property
    def columns(self) -> tuple[str, ...]:
        """The keys that `columns` of a task file has."""
        return (*INPUT_COLUMNS[self.input], TAGS if self.labels_words else LABEL)

    @property
    def label_column(self) -> str:
        """The one of `columns` that holds what is predicted."""
        return self.columns[-1]
