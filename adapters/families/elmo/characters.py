"""Words as the characters that ELMo's CNN reads (UTF-8 bytes between markers), and the piece ids of words.

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
from torch import Tensor

from meltpoint.adapters.families.elmo.options import WORD_LENGTH

Spelling = tuple[int, ...]
"""A word's characters, including the markers of its beginning and end; 3 to 50 of them, 2 for the empty word."""

# allennlp.data.token_indexers.elmo_indexer.ELMoCharacterMapper; 0 to 255 are bytes. (AllenNLP adds 1 to each, so that
# 0 can mask a word; here words are masked by the batch, and a character is its row of the released table.)
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
    assert known == spelling, f"two words have one digest: {known} and {spelling}"
    return piece


def spelling_of(piece: int) -> Spelling:
    """The characters of a piece id that `piece_of` returned in this process."""
    assert piece in _SPELLINGS, f"piece {piece} is of no word that this process has tokenised"
    return _SPELLINGS[piece]


def as_tensor(spellings: Sequence[Spelling], length: int) -> Tensor:
    """Spellings, padded: (words, length) int64."""
    rows = np.full((len(spellings), length), PADDING, dtype=np.int64)
    for row, spelling in zip(rows, spellings, strict=True):
        row[: len(spelling)] = spelling
    return torch.from_numpy(rows)
