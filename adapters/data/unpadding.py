"""Unpadded batches: an encoder's linear layers process the real pieces only, and attention restores the rows.

At least half of a randomly drawn batch is padding: 2.0 positions per real piece on SST-2, 2.6 on CoNLL 2003. Batches of
rows of one length would avoid that, but each step would then see only sentences of about one length. So the pieces of
all rows are concatenated, (1, rounded pieces, dim), as in Zeng et al. 2022, "Boosting distributed training performance
of the unpadded BERT model"; the encoder gets position ids, and attention the rows' lengths.
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
    """The number of pieces that the linear layers process for so many real ones: at most a sixteenth more.

    Rounding limits the number of shapes. oneDNN generates a kernel for every new shape on a CPU (a tenth of a
    fine-tuning step if no two batches have the same length, and 10 MB of kept kernels per step); on a GPU, multiples of
    16 are faster, too.
    """
    step = 1 << max(0, pieces.bit_length() - 5)
    return -(-pieces // step) * step


def places_of(lengths: NDArray[np.int64]) -> tuple[Tensor, tuple[int, ...]]:
    """The flat indices of a padded batch's real pieces, the shortest row first.

    Args:
        lengths: (batch,) number of pieces of each row.

    Returns:
        ((real pieces,) int64: row · longest + position; the rows' lengths in that order).
    """
    order = np.argsort(lengths, kind="stable")
    longest = int(lengths.max())
    real = np.arange(longest) < lengths[order, None]
    return torch.from_numpy((order[:, None] * longest + np.arange(longest))[real]), tuple(lengths[order].tolist())


@dataclass
class Unpadded:
    """The layout of a batch's concatenated real pieces, for attention.

    The pieces are filled up to a `rounded` count with copies of the first one. No row attends to the copies and their
    states are not read, so that they contribute no gradient.

    Attributes:
        places: (real pieces,) int64, the flat index of each in the padded batch.
        lengths: number of pieces of each row, ascending, in the order of the concatenation.
        cls_only: whether only each row's first state will be read.
    """

    places: Tensor
    lengths: Sequence[int]
    cls_only: bool = False

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(rows + 1,) the index among the real pieces at which each row begins, and the number of real pieces."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """(rows,) the index in the padded batch of each concatenated row."""
        return self.places.numpy()[self.starts[:-1]] // self.longest

    @property
    def longest(self) -> int:
        """Number of pieces of the longest row: the padded batch's width."""
        return self.lengths[-1]

    @cached_property
    def first(self) -> Tensor:
        """(batch,) int64: the index among the real pieces of each row's first one, in the padded batch's order."""
        lengths = torch.tensor(self.lengths, device=self.places.device)
        starts = torch.cumsum(lengths, 0) - lengths
        return torch.empty_like(starts).index_copy_(0, self.places[starts] // self.longest, starts)

    @cached_property
    def _filled(self) -> Tensor:
        """(rounded pieces,) int64: `places`, filled up with its first element."""
        more = rounded(len(self.places)) - len(self.places)
        return torch.cat([self.places, self.places[:1].expand(more)])

    def positions(self) -> Tensor:
        """(1, rounded pieces): each piece's position in its row, from 0."""
        return (self._filled % self.longest)[None]

    def pad(self, states: Tensor) -> Tensor:
        """(rounded pieces, …) → (batch, pieces, …), 0 where padded."""
        rows = states.new_zeros(len(self.lengths) * self.longest, *states.shape[1:])
        rows.index_copy_(0, self.places, states[: len(self.places)])  # index_copy out of place would copy the zeros
        return rows.view(-1, self.longest, *states.shape[1:])

    def unpad(self, states: Tensor) -> Tensor:
        """(batch, pieces, …) → (rounded pieces, …)."""
        return states.flatten(0, 1).index_select(0, self._filled)

    def key_mask(self) -> Tensor:
        """(batch, 1, 1, pieces) bool, True on real pieces."""
        mask = torch.zeros(len(self.lengths) * self.longest, dtype=torch.bool, device=self.places.device)
        mask[self.places] = True
        return mask.view(-1, 1, 1, self.longest)
