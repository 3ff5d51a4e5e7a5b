"""Look-up of a text's words as lines of the dictionary.

The authors split a text into sentences with NLTK's punkt, and sentences into words with NLTK's Treebank tokenizer; here
both are `treebank.words_of`. Nothing is lower-cased, since the dictionary and the authors' look-up are case-sensitive.
"""

from __future__ import annotations

from collections.abc import Sequence

from meltpoint.adapters.data.sentence_pooling import Prompts
from meltpoint.adapters.data.tokenizer import Span
from meltpoint.adapters.data.treebank import words_of
from meltpoint.adapters.families.skip_thoughts.variant import EOS

UNKNOWN, END = "UNK", f"<{EOS}>"
UNBOUNDED = 100_000
"""Longest input in pieces: a GRU can read texts of any length, so that only a setting's `max_pieces` limits them."""


class SkipThoughtsTokenizer:
    """A `Tokenizer` with a dictionary of whole words: a word's piece id is its line number.

    Args:
        words: the dictionary's lines; for a repeated word the last line counts, as in the authors' code.
        eos: whether `<eos>` is appended to every text.

    Raises:
        ValueError: `UNK` or `<eos>` is not among the words.
    """

    joins_pairs = False
    prompts = Prompts()
    max_pieces = UNBOUNDED

    def __init__(self, words: Sequence[str], eos: bool) -> None:
        self.words = words
        self._lines = {word: number for number, word in enumerate(words)}
        absent = [word for word in (UNKNOWN, END) if word not in self._lines]
        if absent:
            raise ValueError(f"has no {absent[0]}; download it again")
        self._unknown, self._end = self._lines[UNKNOWN], self._lines[END]
        self._tail = [self._end] if eos else []
        self.pad_piece = self._end

    def sentence(self, text: str, limit: int) -> tuple[list[int], list[int], int]:
        """(pieces, [], number of words cut) of one sentence of at most `limit` words, including `<eos>`.

        A text without words is `<eos>` alone, as an empty sentence was in training; the authors' code cannot encode it.
        """
        lines = [self._lines.get(word, self._unknown) for word in words_of(text)]
        room = limit - len(self._tail)
        return lines[:room] + self._tail or [self._end], [], max(0, len(lines) - room)

    def pair(self, first: str, second: str, limit: int) -> tuple[list[int], list[int], tuple[Span, Span], int]:
        """Never called: `joins_pairs` is false, so that the sentences of a pair are encoded separately."""
        raise AssertionError("Skip-thoughts read one sentence at a time")

    def word(self, word: str) -> list[int]:
        """The line number of one word."""
        return [self._lines.get(word, self._unknown)]

    def frame(self, pieces: Sequence[int]) -> tuple[list[int], list[int], int]:
        """(the pieces, followed by `<eos>` if the variant has it, [], 0)."""
        return [*pieces, *self._tail], [], 0
