"""Attention of rows without padding, by kernels that read the pieces in place.

Two to three times as fast as torch's operations on rows that were padded for it (docs/log.md), and nearer to the exact
result: bf16 is read and written, float32 computed in.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from meltpoint.adapters.cpu.attention import in_autocast
from meltpoint.adapters.cpu.kernels import LANES
from meltpoint.adapters.cpu.kernels import attention as kernels
from meltpoint.adapters.cpu.kernels.dropping import Dropping
from meltpoint.adapters.cpu.kernels.numbers import array
from meltpoint.adapters.cpu.kernels.threads import parallel_for
from meltpoint.adapters.data.unpadding import Unpadded


def attend_unpadded(
    query: Tensor, key: Tensor, value: Tensor, unpadded: Unpadded, scale: float, dropout: float
) -> Tensor:
    """`ops.attend_unpadded` of (rounded pieces, heads, dim), bf16 or float32 on the CPU; 0 after the real pieces."""
    return attend_qkv(torch.stack(in_autocast(query, key, value), 1), unpadded, scale, dropout)


def squares_of(unpadded: Unpadded) -> NDArray[np.int64]:
    """(rows + 1,) offsets of each row's attention weights for one head: (keys, queries in whole vectors)."""
    lengths = np.array(unpadded.lengths)
    return np.concatenate([[0], np.cumsum(lengths * (-(-lengths // LANES) * LANES))])


def attend_qkv(qkv: Tensor, unpadded: Unpadded, scale: float, dropout: float) -> Tensor:
    """`attend_unpadded` of queries, keys and values that lie together.

    Args:
        qkv: (rounded pieces, 3, heads, dim), contiguous.
        unpadded: which pieces make a row.

    Returns:
        (rounded pieces, heads, dim), 0 after the real ones.
    """
    trains = torch.is_grad_enabled() and qkv.requires_grad
    attended: Tensor = _UnpaddedAttention.apply(qkv, unpadded, scale, dropout, trains)  # type: ignore[no-untyped-call]
    return attended


def attend_first(query: Tensor, key: Tensor, value: Tensor, unpadded: Unpadded, scale: float, ratio: float) -> Tensor:
    """`ops.attend_first` of (batch, heads, dim) and twice (rounded pieces, heads, dim), bf16 or float32 on the CPU."""
    attended: Tensor = _FirstAttention.apply(query, key, value, unpadded, scale, ratio)  # type: ignore[no-untyped-call]
    return attended


class _FirstAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, unpadded: Unpadded, scale: float, ratio: float
    ) -> Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        _, heads, dim = query.shape
        attended, dropping = torch.empty_like(query), Dropping.drawn(ratio)
        kept = query.new_empty(int(unpadded.starts[-1]) * heads)
        read, written = [array(one) for one in (query, key, value)], [array(one) for one in (attended, kept)]

        def run(first: int, last: int) -> None:
            kernels.forward_first(
                *read, heads, dim, unpadded.starts, unpadded.order, np.float32(scale), dropping.seed, dropping.level,
                dropping.factor, first, last, *written,
            )  # fmt: skip

        parallel_for(len(unpadded.lengths), run)
        ctx.save_for_backward(query, key, value, kept)
        ctx.unpadded, ctx.scale, ctx.factor = unpadded, np.float32(scale), dropping.factor
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, kept = ctx.saved_tensors
        _, heads, dim = query.shape
        unpadded: Unpadded = ctx.unpadded
        found = [torch.empty_like(one) for one in (query, key, value)]
        for states in found[1:]:
            states[unpadded.starts[-1] :] = 0.0
        read = [array(one) for one in (gradient.contiguous(), query, key, value)]
        written = [array(one) for one in found]

        def run(first: int, last: int) -> None:
            kernels.backward_first(
                *read, heads, dim, unpadded.starts, unpadded.order, ctx.scale, ctx.factor, first, last, array(kept),
                *written,
            )  # fmt: skip

        parallel_for(len(unpadded.lengths), run)
        return (*found, None, None, None)


class _UnpaddedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, unpadded: Unpadded, scale: float, ratio: float, trains: bool) -> Tensor:
        pieces, _, heads, dim = qkv.shape
        starts, squares = unpadded.starts, squares_of(unpadded)
        attended = qkv.new_empty(pieces, heads, dim)
        attended[starts[-1] :] = 0.0
        dropping = Dropping.drawn(ratio)
        kept = qkv.new_empty(int(squares[-1]) * heads if trains or ratio > 0.0 else 0)
        given, into, weights = array(qkv), array(attended), array(kept)

        def run(first: int, last: int) -> None:
            kernels.forward(
                given, heads, dim, starts, squares, np.float32(scale), dropping.seed, dropping.level, dropping.factor,
                first, last, into, weights,
            )  # fmt: skip

        parallel_for(len(unpadded.lengths), run)
        ctx.save_for_backward(qkv, kept)
        ctx.unpadded, ctx.scale, ctx.factor = unpadded, np.float32(scale), dropping.factor
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, kept = ctx.saved_tensors
        _, _, heads, dim = qkv.shape
        starts, squares = ctx.unpadded.starts, squares_of(ctx.unpadded)
        found = torch.empty_like(qkv)
        found[starts[-1] :] = 0.0
        given, read, weights, into = array(gradient.contiguous()), array(qkv), array(kept), array(found)

        def run(first: int, last: int) -> None:
            kernels.backward(
                given, read, heads, dim, starts, squares, ctx.scale, ctx.factor, first, last, weights, into
            )

        parallel_for(len(ctx.unpadded.lengths), run)
        return found, None, None, None, None
