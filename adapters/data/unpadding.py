"""Unpadded batches: an encoder's linear layers process only the real pieces, and attention restores the rows.

At least half of a randomly drawn batch is padding: 2.0 positions per real piece on SST-2, 2.6 on CoNLL 2003. Batches of
rows of one length would avoid that, but each step would then see only sentences of about one length. So the pieces of
all rows are concatenated, (1, rounded pieces, dim), as in Zeng et al. 2022, "Boosting distributed training performance
of the unpadded BERT model"; the encoder gets position ids, and attention the rows' lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

UNPADDED = "meltpoint_unpadded"
"""The keyword under which a model passes an `Unpadded` to its attention."""


Map = Callable[[Tensor], Tensor]

GPU_POSITIONS = 8192
"""Positions of a padded batch up to which a GPU keeps the padding if its step is not a CUDA graph: starting kernels
then takes most of its time, and attention without padding starts more of them (`docs/internals/log.md`, 2026-11-26)."""


def is_worthwhile(pieces: Tensor) -> bool:
    """True if a padded batch, (batch, pieces), is faster without its padding."""
    return not pieces.is_cuda or pieces.numel() > GPU_POSITIONS


def rounded(pieces: int) -> int:
    """The number of pieces that the linear layers process for `pieces` real pieces: at most a sixteenth more.

    Rounding limits the number of shapes. oneDNN generates a kernel for every new shape on a CPU (a tenth of a
    fine-tuning step if no two batches have the same length, and 10 MB of kept kernels per step); on a GPU, multiples of
    16 are also faster.
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

    The pieces are padded to a `rounded` count with copies of the first piece. No row attends to the copies, and their
    states are not read, so they contribute no gradient.

    Attributes:
        places: (real pieces,) int64, the flat index of each in the padded batch.
        lengths: number of pieces of each row, ascending, in the order of the concatenation.
        cls_only: whether only each row's first state will be read.
    """

    places: Tensor
    lengths: Sequence[int]
    cls_only: bool = False

    @property
    def longest(self) -> int:
        """Number of pieces of the longest row: the padded batch's width."""
        return self.lengths[-1]

    @cached_property
    def first(self) -> Tensor:
        """(batch,) int64: the index among the real pieces of each row's first piece, in the padded batch's order."""
        lengths = torch.tensor(self.lengths, device=self.places.device)
        starts = torch.cumsum(lengths, 0) - lengths
        return torch.empty_like(starts).index_copy_(0, self.places[starts] // self.longest, starts)

    @cached_property
    def _filled(self) -> Tensor:
        """(rounded pieces,) int64: `places`, padded with its first element."""
        more = rounded(len(self.places)) - len(self.places)
        return torch.cat([self.places, self.places[:1].expand(more)])

    def positions(self) -> Tensor:
        """(1, rounded pieces): each piece's position in its row, from 0."""
        return (self._filled % self.longest)[None]

    @cached_property
    def _sources(self) -> tuple[Tensor, Tensor]:
        """((batch · pieces,) int64: each position's index among the real pieces, 0 where padded; True where padded)."""
        count, device = len(self.places), self.places.device
        sources = torch.full((len(self.lengths) * self.longest,), -1, device=device)
        sources.index_copy_(0, self.places, torch.arange(count, device=device))
        is_padding = sources < 0
        return sources.masked_fill_(is_padding, 0), is_padding

    def pad(self, states: Tensor) -> Tensor:
        """(rounded pieces, …) → (batch, pieces, …), 0 where padded."""
        rows = mapped(states, self.rows_of, self._real_pieces_of)
        return rows.view(-1, self.longest, *states.shape[1:])

    def unpad(self, states: Tensor) -> Tensor:
        """(batch, pieces, …) → (rounded pieces, …)."""
        return mapped(states.flatten(0, 1), self.pieces_of, self.rows_of)

    def key_mask(self, window: int | None = None) -> Tensor:
        """(batch, 1, 1, pieces) bool, True on real pieces; (batch, 1, pieces, pieces) if a row exceeds the window.

        Args:
            window: the distance from which a piece is not attended to. A padded position attends to itself: a softmax
                over nothing would give its gradient no number.
        """
        mask = ~self._sources[1].view(-1, 1, 1, self.longest)
        if window is None or window >= self.longest:
            return mask
        positions = torch.arange(self.longest, device=mask.device)
        distances = (positions[:, None] - positions).abs()
        return mask & (distances < window) | (distances == 0)

    def rows_of(self, states: Tensor) -> Tensor:
        """(rounded pieces, …) → (batch · pieces, …), 0 where padded."""
        if not states.is_cuda:  # halves the time on a CPU; a GPU would first sort the indices, to be deterministic
            rows = states.new_zeros(len(self.lengths) * self.longest, *states.shape[1:])
            return rows.index_copy_(0, self.places, states[: len(self.places)])
        return self.picked(states)

    def picked(self, states: Tensor) -> Tensor:
        """`rows_of` by picking a piece for each position."""
        sources, is_padding = self._sources
        rows = states.index_select(0, sources)
        return rows.masked_fill_(is_padding.view(-1, *[1] * (states.dim() - 1)), 0)

    def pieces_of(self, rows: Tensor) -> Tensor:
        """(batch · pieces, …) → (rounded pieces, …)."""
        return rows.index_select(0, self._filled)

    def _real_pieces_of(self, rows: Tensor) -> Tensor:
        """`pieces_of`, with 0 in the padding copies: nothing reads them, so they have no gradient."""
        pieces = self.pieces_of(rows)
        pieces[len(self.places) :] = 0
        return pieces


def mapped(rows: Tensor, onward: Map, back: Map) -> Tensor:
    """`onward(rows)`, whose gradient is mapped by `back`; torch's own would scatter it, and sort first on a GPU."""
    return _Mapped.apply(rows, onward, back)  # type: ignore[no-any-return, no-untyped-call]


class _Mapped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, onward: Map, back: Map) -> Tensor:
        ctx.back = back
        return onward(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.back(gradient), None, None
