"""ELMo's character CNN: convolutions over a word's characters, max-pooling, highway layers, and a projection."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.families.elmo.characters import CHARACTERS, Spelling, as_tensor
from meltpoint.adapters.families.elmo.options import WORD_LENGTH, CharacterOptions

CHUNK = 64
"""Words per pass: short words are not padded to the longest one, and the activations of a pass fit into the cache."""


class Highway(nn.Module):
    """y = c ∘ relu(W_t x + b_t) + (1 - c) ∘ x with c = sigmoid(W_c x + b_c) (Srivastava et al. 2015, eq. 3).

    The gate is named `carry` as in the released files, although it multiplies the transformed part.
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

        Words are defined with 50 characters, including padding. Windows of only padding all have the same value, so
        that one of them per filter suffices.
        """
        length = min(WORD_LENGTH, max(map(len, spellings)) + self._widest)
        read = functional.embedding(as_tensor(spellings, length).to(self.characters.device), self.characters)
        read = read.transpose(1, 2)
        return self.activation(torch.cat([filters(read).amax(-1) for filters in self.convolutions], -1))
