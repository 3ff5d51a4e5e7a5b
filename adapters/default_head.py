"""`DefaultHead`, the head that a mode takes where none is named, and the traits of an encoder that it depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from meltpoint.tasks.core.task import Kind


class Reader(Protocol):
    """The traits of an encoder by which a default head is chosen; `EncoderReference` has them."""

    @property
    def joins_pairs(self) -> bool:
        """True where it can take both sentences of a pair as one input, as BERT does and ELMo does not."""

    @property
    def has_words(self) -> bool:
        """True where it has a state for each word; if not, it has one vector per sentence."""

    def has_native_head(self, kind: Kind) -> bool:
        """True where transformers builds a classification head on it."""


@dataclass(frozen=True)
class Traits:
    """The traits of a family's encoders, for those whose files lie elsewhere; see `Reader`."""

    joins_pairs: bool = True
    has_words: bool = True
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
