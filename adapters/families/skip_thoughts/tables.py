"""Word tables of skip-thoughts, and their tokenizer.

The authors split a text into sentences with NLTK's punkt, and sentences into words with NLTK's Treebank tokenizer; here
both are `word_tokenizer.words_of`. Nothing is lower-cased, since the dictionary and the authors' look-up are
case-sensitive.

The published tables are pickled NumPy arrays of Python objects, one small array per word. Unpickling can run any code,
so you convert each once (docs/encoders.md) to plain float32, which is memory-mapped: all processes share one copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meltpoint.adapters.data.input_format import Prompts, Span
from meltpoint.adapters.data.word_tokenizer import words_of
from meltpoint.adapters.families.huggingface.files import first_line
from meltpoint.adapters.families.skip_thoughts.files import EOS

UNKNOWN, END = "UNK", f"<{EOS}>"
UNBOUNDED = 100_000
"""Longest input in pieces: a GRU can read texts of any length, so only a setting's `max_pieces` limits them."""


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

        A text without words becomes `<eos>` alone, like an empty sentence in training; the authors' code cannot encode
        it.
        """
        lines = [self._lines.get(word, self._unknown) for word in words_of(text)]
        room = limit - len(self._tail)
        return lines[:room] + self._tail or [self._end], [], max(0, len(lines) - room)

    def pair(self, first: str, second: str, limit: int) -> tuple[list[int], list[int], tuple[Span, Span], int]:
        """Never called: `joins_pairs` is false, so the sentences of a pair are encoded separately."""
        raise AssertionError("Skip-thoughts read one sentence at a time")

    def word(self, word: str) -> list[int]:
        """The line number of one word."""
        return [self._lines.get(word, self._unknown)]

    def frame(self, pieces: Sequence[int]) -> tuple[list[int], list[int], int]:
        """(the pieces, followed by `<eos>` if the variant has it, [], 0)."""
        return [*pieces, *self._tail], [], 0


WordVectors = NDArray[np.float32]
"""(words, dim), or (dim,) for one word."""


def read_table(path: Path) -> WordVectors:
    """Memory-map a table, copy-on-write: (words, dim).

    Raises:
        ValueError: the file is not a plain table of word vectors; one line with the remedy.
    """
    try:
        table: NDArray[Any] = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(
            f"{path} is not a plain table of word vectors ({first_line(error)}); docs/encoders.md has the line that "
            "converts a published table."
        ) from error
    if table.ndim != 2 or table.dtype.kind != "f":
        raise ValueError(
            f"{path} holds {table.dtype} of shape {table.shape}, not one vector per word; download it again."
        )
    return table.astype(np.float32, copy=False)


def read_words(path: Path) -> list[str]:
    """Read the words of `dictionary.txt`, one per line, stripped of white space as in the authors' code.

    Lines end at line feeds only, as in the authors' Python 2; `str.splitlines` would also split at other separators.

    Raises:
        ValueError: the file is not UTF-8.
    """
    try:
        lines = path.read_bytes().decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8; download it again.") from error
    return [line.strip() for line in (lines if lines[-1] else lines[:-1])]
