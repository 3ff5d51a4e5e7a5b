"""Characters of words: their ids, the tokenizer and the character CNN.

A word's piece id is a digest of its characters, the same in every process, because cached features are keyed by pieces.
The mapping from ids to characters is kept per process, not per tokenizer, since a worker keeps tokenised splits longer
than encoders.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.data.input_format import Prompts, Span
from meltpoint.adapters.families.elmo.files import WORD_LENGTH, CharacterOptions

Spelling = tuple[int, ...]
"""A word's characters, including the markers of its beginning and end; 3 to 50 of them, 2 for the empty word."""

# allennlp.data.token_indexers.elmo_indexer.ELMoCharacterMapper; 0 to 255 are bytes. (AllenNLP adds 1 to each, so that
# 0 can mask a word; here the batch masks words, and a character's id is its row in the released table.)
SENTENCE_BEGINS, SENTENCE_ENDS, WORD_BEGINS, WORD_ENDS, PADDING = range(256, 261)
CHARACTERS = 261

BEFORE: Spelling = (WORD_BEGINS, SENTENCE_BEGINS, WORD_ENDS)
"""`<S>`, read before each sentence."""
AFTER: Spelling = (WORD_BEGINS, SENTENCE_ENDS, WORD_ENDS)
"""`</S>`, read after each sentence."""

_SPELLINGS: dict[int, Spelling] = {}


def spell(word: str) -> Spelling:
    """A word's characters: at most 48 bytes, as in AllenNLP, even if that splits a multi-byte letter."""
    if word in ("<S>", "</S>"):
        return BEFORE if word == "<S>" else AFTER
    return (WORD_BEGINS, *word.encode("utf-8", "ignore")[: WORD_LENGTH - 2], WORD_ENDS)


@cache
def piece_of(word: str) -> int:
    """The piece id of a word: 63 bits of the BLAKE2b digest of its characters.

    Among a million words, two share a piece with a probability of 5e-8.
    """
    spelling = spell(word)
    digest = hashlib.blake2b(np.array(spelling, dtype="<i2").tobytes(), digest_size=8).digest()
    piece = int.from_bytes(digest, "little") >> 1
    known = _SPELLINGS.setdefault(piece, spelling)
    assert known == spelling, f"two words have the same digest: {known} and {spelling}"
    return piece


def spelling_of(piece: int) -> Spelling:
    """The characters of a piece id that `piece_of` returned in this process."""
    assert piece in _SPELLINGS, f"piece {piece} belongs to no word that this process has tokenised"
    return _SPELLINGS[piece]


def as_tensor(spellings: Sequence[Spelling], length: int) -> Tensor:
    """Spellings, padded: (words, length) int64."""
    rows = np.full((len(spellings), length), PADDING, dtype=np.int64)
    for row, spelling in zip(rows, spellings, strict=True):
        row[: len(spelling)] = spelling
    return torch.from_numpy(rows)


class ElmoTokenizer:
    """Splits a text at white space (`str.split`), without lower-casing and special tokens.

    ELMo was trained on tokenised text: "good ." is two frequent words, "good." is one rare word. Raw text therefore
    passes through a word tokenizer first (`data.word_tokenizer`).
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
        raise ValueError("ELMo reads one sentence at a time; use pairing: separate, or auto.")

    def word(self, word: str) -> list[int]:
        """The single piece of a word, including any white space in it."""
        return [piece_of(word)]

    def frame(self, pieces: Sequence[int]) -> tuple[list[int], list[int], int]:
        """(the pieces unchanged, [], 0): the encoder itself adds `<S>` and `</S>`."""
        return list(pieces), [], 0


CHUNK = 64
"""Words per pass: short words are not padded to the longest word, and the activations of a pass fit into the cache."""


class Highway(nn.Module):
    """y = c ∘ relu(W_t x + b_t) + (1 - c) ∘ x with c = sigmoid(W_c x + b_c) (Srivastava et al. 2015, eq. 3).

    The gate is called `carry` as in the released files, although it multiplies the transformed part.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(size, size)
        self.carry = nn.Linear(size, size)

    def forward(self, words: Tensor) -> Tensor:
        """(words, size) → (words, size)."""
        moved: Tensor = words + self.carry(words).sigmoid() * (self.transform(words).relu() - words)
        return moved


class CharacterCNN(nn.Module):
    """Context-independent word vectors from characters (Kim et al. 2016; Jozefowicz et al. 2016, section 3).

    Args:
        options: the sizes of its layers.
        dim: size of a word's vector.
    """

    def __init__(self, options: CharacterOptions, dim: int) -> None:
        super().__init__()
        size = options.embedding.dim
        filters = sum(number for _, number in options.filters)
        self.characters = nn.Parameter(torch.randn(CHARACTERS, size))
        self.convolutions = nn.ModuleList(nn.Conv1d(size, number, width) for width, number in options.filters)
        self.activation = torch.relu if options.activation == "relu" else torch.tanh
        self.highways = nn.ModuleList(Highway(filters) for _ in range(options.n_highway))
        self.projection = nn.Linear(filters, dim)
        self._widest = max(width for width, _ in options.filters)

    def forward(self, spellings: Sequence[Spelling]) -> Tensor:
        """The words' vectors, in their order: (words, dim)."""
        order = sorted(range(len(spellings)), key=lambda number: len(spellings[number]))
        chunks = [order[start : start + CHUNK] for start in range(0, len(order), CHUNK)]
        filtered = torch.cat([self._filtered([spellings[number] for number in chunk]) for chunk in chunks])
        for highway in self.highways:
            filtered = highway(filtered)
        place = torch.empty(len(order), dtype=torch.int64)
        place[torch.tensor(order)] = torch.arange(len(order))
        projected: Tensor = self.projection(filtered)
        return projected.index_select(0, place.to(projected.device))

    def _filtered(self, spellings: Sequence[Spelling]) -> Tensor:
        """Each filter's maximum over a word: (words, filters).

        Words are defined with 50 characters, including padding. All windows of padding alone have the same value, so
        one such window per filter suffices.
        """
        length = min(WORD_LENGTH, max(map(len, spellings)) + self._widest)
        read = functional.embedding(as_tensor(spellings, length).to(self.characters.device), self.characters)
        read = read.transpose(1, 2)
        return self.activation(torch.cat([filters(read).amax(-1) for filters in self.convolutions], -1))
