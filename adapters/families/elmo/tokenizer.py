"""ELMo's tokenizer: words are what lies between white space, and each is one piece."""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.adapters.data.tokenizer import Span
from meltpoint.adapters.families.elmo.characters import piece_of


class WordTokenizer:
    """White space cuts a text into words (`str.split`); nothing is lower-cased, no special pieces are added.

    ELMo was trained on tokenised text: "good ." is two words it knows, "good." one that it can only spell.
    """

    pad_piece = 0
    max_pieces = 1000
    """An LSTM has no longest input. Memory for its gradients grows with each word, and no task here has such texts."""
    joins_pairs = False

    def sentence(self, text: str, limit: int) -> tuple[list[int], list[int], bool]:
        """(pieces, [], whether words were cut) of at most `limit` words; a text without any is the empty word."""
        words = text.split() or [""]
        return [piece_of(word) for word in words[:limit]], [], len(words) > limit

    def pair(self, first: str, second: str, limit: int) -> tuple[list[int], list[int], tuple[Span, Span], bool]:
        """Refused: each sentence of a pair is an input of its own.

        Raises:
            ValueError: always.
        """
        raise ValueError("ELMo reads one sentence at a time; take pairing: separate, or auto.")

    def word(self, word: str) -> list[int]:
        """The one piece of a word, white space inside it included."""
        return [piece_of(word)]

    def frame(self, pieces: Sequence[int]) -> tuple[list[int], list[int], int]:
        """(the pieces as they are, [], 0): the encoder itself adds the marks of a sentence's ends."""
        return list(pieces), [], 0
