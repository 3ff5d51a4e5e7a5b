"""The interface of an encoder's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from meltpoint.adapters.data.sentence_pooling import Prompts

Span = tuple[int, int]
"""(start, stop) of consecutive pieces."""


class Tokenizer(Protocol):
    """Text → subword token ids ("pieces"), with the special tokens that the encoder expects.

    Attributes:
        pad_piece: the piece id of padded positions.
        max_pieces: the longest input of its encoder, special tokens included.
        joins_pairs: whether its encoder can take both sentences of a pair as one input.
        prompts: the prefixes that its encoder was trained with.
    """

    pad_piece: int
    max_pieces: int
    joins_pairs: bool
    prompts: Prompts

    def sentence(self, text: str, limit: int) -> tuple[list[int], list[int], int]:
        """(pieces, segments or [], number of pieces cut) of one sentence of at most `limit` pieces."""

    def pair(self, first: str, second: str, limit: int) -> tuple[list[int], list[int], tuple[Span, Span], int]:
        """(pieces, segments or [], each sentence's span, number of pieces cut) of a pair, encoded jointly.

        The longer sentence is truncated first.
        """

    def word(self, word: str) -> list[int]:
        """The pieces of one word in the middle of a sentence, without special tokens; never empty."""

    def frame(self, pieces: Sequence[int]) -> tuple[list[int], list[int], int]:
        """(pieces with special tokens, segments or [], number of special tokens before the first piece)."""
