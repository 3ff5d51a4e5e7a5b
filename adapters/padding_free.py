"""Batches without their padding: an encoder's linear layers see the real pieces alone, only attention sees rows.

A batch of rows drawn at random is half padding where lengths differ: 2.0 positions a real piece on SST-2, 2.6 on CoNLL
2003. Rows of one length together would avoid that, but a step then sees one kind of sentence only. So the pieces lie
one after another, (1, rounded pieces, dim), as in Zeng et al. 2022, "Boosting distributed training performance of the
unpadded BERT model"; the encoder is told their positions, and attention the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NEVER = -1e30
"""Added to a score that must not count. Finite, so that a row without any key (a padded query) gives no NaN."""

LANES = 32
"""Keys are padded to a multiple of this: bf16 numbers in one AVX-512 register."""


def padded(pieces: int) -> int:
    """The keys' width in an attention of so many pieces."""
    return -(-pieces // LANES) * LANES


def rounded(pieces: int) -> int:
    """How many pieces the linear layers are given where there are so many real ones: at most a sixteenth more.

    A CPU's library writes a kernel of its own for every new shape (oneDNN, a tenth of a fine-tuning step where no two
    batches have one length, and 10 MB a step of kernels that it keeps); a GPU likes multiples of 16, too.
    """
    step = 1 << max(0, pieces.bit_length() - 5)
    return -(-pieces // step) * step


def places_of(lengths: NDArray[np.int64]) -> tuple[Tensor, tuple[int, ...]]:
    """Where a padded batch's real pieces lie, the shortest row first.

    Args:
        lengths: (batch,) pieces of each row.

    Returns:
        ((real pieces,) int64: row · longest + position; the rows' lengths in that order).
    """
    order = np.argsort(lengths, kind="stable")
    longest = int(lengths.max())
    real = np.arange(longest) < lengths[order, None]
    return torch.from_numpy((order[:, None] * longest + np.arange(longest))[real]), tuple(lengths[order].tolist())


class GatherIndices(NamedTuple):
    """Lists of indices, int64, that gather vectors of pieces into rows of one width, and back.

    Attributes:
        wide: (3 · rows · heads · width,), each query's, each key's, then each value's index among the vectors of the
            pieces, (pieces · 3 · heads); padding stands for its row's first piece.
        back: (pieces · heads,), each vector's index among the rows' vectors, (rows · heads · width).
        back_qkv: (pieces · 3 · heads,), the same among all queries, keys and values.
    """

    wide: Tensor
    back: Tensor
    back_qkv: Tensor


@dataclass
class Group:
    """Rows that lie one after another and are attended at one width.

    Attributes:
        start, end: which of the real pieces are theirs.
        lengths: of the rows, ascending.
        width: what queries and keys are padded to. Queries would need no padding, but shapes that recur are quicker.
    """

    start: int
    end: int
    lengths: Tensor
    width: int
    _indices: dict[int, GatherIndices] = field(default_factory=dict)
    _biases: dict[tuple[int, torch.dtype], Tensor] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.lengths)

    def indices(self, heads: int) -> GatherIndices:
        """How the vectors of so many heads become rows of one width and pieces again; kept for every layer."""
        if heads not in self._indices:
            first = torch.cumsum(self.lengths, 0) - self.lengths
            within = torch.arange(self.width)
            real = first[:, None] + torch.where(within < self.lengths[:, None], within, 0)  # (rows, width): pieces
            head = torch.arange(heads)
            vectors = real[:, None, :] * (3 * heads) + head[:, None]  # (rows, heads, width): their queries
            part = torch.arange(3)[:, None, None]
            row = torch.repeat_interleave(torch.arange(self.rows), self.lengths)
            place = (row[:, None] * heads + head) * self.width + (torch.arange(len(row)) - first[row])[:, None]
            self._indices[heads] = GatherIndices(
                (vectors.reshape(-1) + heads * part[:, 0]).reshape(-1),
                place.reshape(-1),
                (place[:, None] + vectors.numel() * part.view(1, 3, 1)).reshape(-1),
            )
        return self._indices[heads]

    def bias(self, heads: int, dtype: torch.dtype) -> Tensor:
        """What is added to so many heads' scores: (rows · heads, width, width), 0 or `NEVER`; kept for every layer."""
        if (heads, dtype) not in self._biases:
            padding = torch.arange(self.width) >= self.lengths[:, None]  # (rows, width)
            line = torch.zeros(padding.shape, dtype=dtype).masked_fill_(padding, NEVER)[:, None, None]
            shape = self.rows, heads, self.width, self.width
            self._biases[heads, dtype] = line.expand(shape).reshape(-1, *shape[2:])
        return self._biases[heads, dtype]


@dataclass
class Unpadded:
    """A batch's real pieces as attention needs to know them.

    After them come a few that stand for nothing, up to a `rounded` count: the first piece once more, which no row
    attends to and nobody reads, so that no gradient comes from them.

    Attributes:
        places: (real pieces,) int64, where each lies in the padded batch.
        lengths: of the rows in the pieces' order, ascending.
        first_alone: whether only each row's first state will be read.
    """

    places: Tensor
    lengths: Sequence[int]
    first_alone: bool = False

    @cached_property
    def groups(self) -> list[Group]:
        """The rows by the width that their keys are padded to; on the CPU."""
        return list(_groups(self.lengths))

    @property
    def longest(self) -> int:
        """Pieces of the longest row: the padded batch's width."""
        return self.lengths[-1]

    @cached_property
    def first(self) -> Tensor:
        """(batch,) int64: where among the real pieces each row's first one lies, in the batch's order."""
        lengths = torch.tensor(self.lengths, device=self.places.device)
        starts = torch.cumsum(lengths, 0) - lengths
        return torch.empty_like(starts).index_copy_(0, self.places[starts] // self.longest, starts)

    @cached_property
    def _filled(self) -> Tensor:
        """(rounded pieces,) int64: `places`, and the first of them again and again."""
        more = rounded(len(self.places)) - len(self.places)
        return torch.cat([self.places, self.places[:1].expand(more)])

    def positions(self) -> Tensor:
        """(1, rounded pieces): each piece's place in its row, from 0."""
        return (self._filled % self.longest)[None]

    def pad(self, states: Tensor) -> Tensor:
        """(rounded pieces, …) → (batch, pieces, …), 0 where padded."""
        rows = states.new_zeros(len(self.lengths) * self.longest, *states.shape[1:])
        rows.index_copy_(0, self.places, states[: len(self.places)])  # in place: the other kind copies the zeros first
        return rows.view(-1, self.longest, *states.shape[1:])

    def unpad(self, states: Tensor) -> Tensor:
        """(batch, pieces, …) → (rounded pieces, …)."""
        return states.flatten(0, 1).index_select(0, self._filled)

    def key_mask(self) -> Tensor:
        """(batch, 1, 1, pieces) bool, True on real pieces."""
        mask = torch.zeros(len(self.lengths) * self.longest, dtype=torch.bool, device=self.places.device)
        mask[self.places] = True
        return mask.view(-1, 1, 1, self.longest)


def _groups(lengths: Sequence[int]) -> Iterator[Group]:
    first = start = 0
    for row, length in enumerate(lengths):
        last = row + 1 == len(lengths)
        if last or padded(lengths[row + 1]) > padded(length):
            end = start + sum(lengths[first : row + 1])
            yield Group(start, end, torch.tensor(lengths[first : row + 1]), padded(length))
            first, start = row + 1, end
