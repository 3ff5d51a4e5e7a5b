"""Batches without their padding: an encoder's linear layers see the real pieces alone, only attention sees rows.

A batch of rows drawn at random is half padding where lengths differ: 2.0 positions a real piece on SST-2, 2.6 on CoNLL
2003. Rows of one length together would avoid that, but a step then sees one kind of sentence only. So the pieces lie
one after another, (1, rounded pieces, dim), as in Zeng et al. 2022, "Boosting distributed training performance of the
unpadded BERT model"; the encoder is told their positions, and attention the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

UNPADDED = "meltpoint_unpadded"
"""The keyword under which a model passes an `Unpadded` to its attention."""


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


@dataclass
class Unpadded:
    """A batch's real pieces as attention needs to know them.

    After them come a few that stand for nothing, up to a `rounded` count: the first piece once more, which no row
    attends to and nobody reads, so that no gradient comes from them.

    Attributes:
        places: (real pieces,) int64, where each lies in the padded batch.
        lengths: of the rows in the pieces' order, ascending.
        cls_only: whether only each row's first state will be read.
    """

    places: Tensor
    lengths: Sequence[int]
    cls_only: bool = False

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(rows + 1,) where among the real pieces each row begins, and their number."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """(rows,) which of the batch's rows each one is."""
        return self.places.numpy()[self.starts[:-1]] // self.longest

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
