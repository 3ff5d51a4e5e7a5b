"""ELMo's tokenizer: words are separated by white space, and each is one piece."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.adapters.data.sentence_pooling import Prompts
from meltpoint.adapters.data.tokenizer import Span
from meltpoint.adapters.families.elmo.characters import piece_of


class ElmoTokenizer:
    """Splits a text at white space (`str.split`), without lower-casing and special tokens.

    ELMo was trained on tokenised text: "good ." is two frequent words, "good." a single rare one. Raw text therefore
    passes through a word tokenizer before (`data.word_tokenizer`).
    """

    pad_piece = 0
    max_pieces = 1000
    """An LSTM has no longest input, but the memory for its gradients grows with each word; no task has longer texts."""
    joins_pairs = False
    prompts = Prompts()

    def sentence(self, text: str, limit: int) -> tuple[list[int], list[int], int]:
        """(pieces, [], number of words cut) of at most `limit` words; a text without words is one empty word."""
        words = text.split() or [""]
        return [piece_of(word) for word in words[:limit]], [], max(0, len(words) - limit)

    def pair(self, first: str, second: str, limit: int) -> tuple[list[int], list[int], tuple[Span, Span], int]:
        """Refuse a pair: ELMo encodes the sentences of a pair separately.

        Raises:
            ValueError: always.
        """
        raise ValueError("ELMo reads one sentence at a time; take pairing: separate, or auto.")

    def word(self, word: str) -> list[int]:
        """The single piece of a word, including any white space in it."""
        return [piece_of(word)]

    def frame(self, pieces: Sequence[int]) -> tuple[list[int], list[int], int]:
        """(the pieces unchanged, [], 0): the encoder itself adds `<S>` and `</S>`."""
        return list(pieces), [], 0
