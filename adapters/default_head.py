"""The heads that a mode takes where none is named, by the kind of task and the traits of the encoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from meltpoint.tasks.core import kinds
from meltpoint.tasks.core.kinds import Input
from meltpoint.tasks.core.task import Kind


class EncoderTraits(Protocol):
    """The traits of an encoder by which a default head is chosen; `EncoderReference` has them."""

    @property
    def joins_pairs(self) -> bool:
        """True where it can take both sentences of a pair as one input, as BERT does and ELMo does not."""

    @property
    def has_words(self) -> bool:
        """True where it has a state for each word; if not, it has one vector per sentence."""

    @property
    def has_pooling(self) -> bool:
        """True where it was trained to give one vector a sentence, and its files say how, as all-MiniLM's do."""

    def has_native_head(self, kind: Kind) -> bool:
        """True where transformers builds a classification head on it."""


@dataclass(frozen=True)
class FamilyTraits:
    """The traits that all encoders of a family have, for those whose files lie elsewhere; see `EncoderTraits`."""

    joins_pairs: bool = True
    has_words: bool = True
    has_pooling: bool = False
    of_transformers: bool = True

    def has_native_head(self, kind: Kind) -> bool:
        """True for the families of transformers; few of them have none, and their files say so."""
        return self.of_transformers


@dataclass(frozen=True)
class DefaultHead:
    """A head's name, and the source of the choice for `plan`."""

    name: str
    source: str


SENTENCE_VECTORS = DefaultHead(
    "sentence_vectors", "a linear classifier on one vector a sentence: Kiros et al. 2015, section 3"
)
"""The head of encoders without a state for each word, in every mode."""


@dataclass(frozen=True)
class DefaultHeads:
    """The default heads of a mode.

    Attributes:
        joint: kind of task → the head of an encoder that takes a pair as one input, as BERT does.
        single: the same for an encoder that reads one sentence at a time, as ELMo does, where it is another head.
        pooled: the head that comes before all others for sentences and pairs of an encoder that was trained to give one
            vector a sentence, or None.
        native: kind of task → the head that comes before `joint` where transformers builds one on the encoder, or None.
    """

    joint: Mapping[Kind, DefaultHead]
    single: Mapping[Kind, DefaultHead] = field(default_factory=dict)
    pooled: DefaultHead | None = None
    native: Mapping[Kind, DefaultHead] | None = None

    def of(self, encoder: EncoderTraits, kind: Kind) -> DefaultHead:
        """The head for an encoder and a kind of task."""
        if not encoder.has_words:
            return SENTENCE_VECTORS
        if self.pooled is not None and encoder.has_pooling and not kinds.get(kind).labels_words:
            return self.pooled
        if self.native is not None and encoder.has_native_head(kind):
            return self.native[kind]
        return self.joint[kind] if encoder.joins_pairs else self.single.get(kind, self.joint[kind])


def by_kind(labels: DefaultHead, sentences: DefaultHead, pairs: DefaultHead) -> Mapping[Kind, DefaultHead]:
    """Kind of task → head: by what its examples hold, whatever is predicted of them."""
    heads: Mapping[Input, DefaultHead] = {"words": labels, "sentence": sentences, "pair": pairs}
    return {kind: heads[kinds.get(kind).input] for kind in kinds.names()}
