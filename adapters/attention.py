"""Attention of short sequences on a CPU, where torch's own kernels are at their worst.

`scaled_dot_product_attention` of torch 2.13 on a CPU goes two ways. With dropout it takes the plain formula; without, a
blocked kernel whose backward pass costs about 20 ms a layer for 32 × 12 × 26 × 32. And a bf16 `softmax` is slow where
a row is no multiple of 32 (26 pieces: 1.3 ms, 32 pieces: 0.4 ms). Here the keys are padded to that width inside the
attention alone, and the rest is six batched products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meltpoint.adapters.dropout import acts_quickly, drop, keep
from meltpoint.adapters.padding_free import NEVER, Unpadded, padded

LONGEST = 128
"""Above this many pieces torch's blocked kernel serves where there is no dropout: its memory does not grow with L²."""


def attend_unpadded(
    query: Tensor, key: Tensor, value: Tensor, unpadded: Unpadded, scale: float, dropout: float
) -> Tensor:
    """`attend` within each row of a batch whose pieces lie one after another.

    Args:
        query, key, value: (rounded pieces, heads, dim).
        unpadded: which pieces make a row.

    Returns:
        (rounded pieces, heads, dim), 0 after the real ones.
    """
    return attend_qkv(torch.stack(_autocast(query, key, value), 1), unpadded, scale, dropout)


def attend_qkv(qkv: Tensor, unpadded: Unpadded, scale: float, dropout: float) -> Tensor:
    """`attend_unpadded` of queries, keys and values that lie together.

    Args:
        qkv: (rounded pieces, 3, heads, dim), contiguous.
        unpadded: which pieces make a row.

    Returns:
        (rounded pieces, heads, dim), 0 after the real ones.
    """
    attended: Tensor = _UnpaddedAttention.apply(qkv, unpadded, scale, dropout)  # type: ignore[no-untyped-call]
    return attended


def attend_first(query: Tensor, key: Tensor, value: Tensor, unpadded: Unpadded, scale: float, ratio: float) -> Tensor:
    """Attention with one query a row: its first piece's.

    Args:
        query: (batch, heads, dim), in the batch's order.
        key, value: (rounded pieces, heads, dim).
        unpadded: which pieces make a row.
        ratio: the share of attention weights that is dropped.

    Returns:
        (batch, heads, dim).
    """
    keys, values = (unpadded.pad(states).transpose(1, 2) for states in (key, value))  # (batch, heads, pieces, dim)
    scores = query[:, :, None] @ keys.transpose(2, 3) * scale
    weights = torch.softmax(scores.masked_fill(~unpadded.key_mask(), NEVER), -1)
    return (drop(weights, ratio) @ values).squeeze(2)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, dropout: float) -> Tensor:
    """softmax(query · keyᵀ · scale), masked and dropped, · value (Vaswani et al. 2017, eq. 1).

    Args:
        query, key, value: (batch, heads, pieces, dim).
        mask: broadcasts to (batch, heads, pieces, pieces), True where attended.
        dropout: the share of attention weights that is dropped.

    Returns:
        (batch, heads, pieces, dim).
    """
    query, key, value = _autocast(query, key, value)
    bias = _bias(mask, query)
    attended: Tensor = _Attention.apply(query, key, value, bias, scale, dropout)  # type: ignore[no-untyped-call]
    return attended


def _autocast(*states: Tensor) -> tuple[Tensor, ...]:
    """The same in autocast's type where it is on: autograd functions of one's own do not get that by themselves."""
    return tuple(one.to(autocast_dtype(one.dtype)) for one in states)


def autocast_dtype(own: torch.dtype) -> torch.dtype:
    """The type that autocast computes in on a CPU; `own` where it is off."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else own


def _bias(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """What is added to the scores: 0 or `NEVER`, (batch · heads, pieces, padded); None where it is 0 everywhere."""
    batch, heads, pieces, _ = query.shape
    wide = padded(pieces)
    if mask is None and wide == pieces:
        return None
    # A mask of padding alone says the same for every query: one line of it will do (the stride tells).
    lines = (1, 1, 1, pieces) if mask is None else (*mask.shape[:2], 1 if mask.stride(2) == 0 else pieces, pieces)
    bias = query.new_full((*lines[:3], wide), NEVER)
    bias[..., :pieces] = 0.0 if mask is None else bias[..., :pieces].masked_fill(mask[:, :, : lines[2]], 0.0)
    return bias.expand(batch, heads, pieces, wide).reshape(-1, pieces, wide)


def _rows(states: Tensor, rows: int) -> Tensor:
    """(batch, heads, pieces, dim) → (batch · heads, rows, dim), zero after the pieces."""
    batch, heads, pieces, dim = states.shape
    if rows == pieces:
        return states.reshape(batch * heads, pieces, dim)
    wide = states.new_empty(batch, heads, rows, dim)
    wide[:, :, :pieces] = states
    wide[:, :, pieces:] = 0.0
    return wide.view(batch * heads, rows, dim)


@dataclass
class _Weighed:
    """One attention's forward pass: what its backward pass needs.

    Attributes:
        scale, factor: what the scores were multiplied by, and what dropout kept.
        q: (batch · heads, pieces, dim); k, v: (batch · heads, padded, dim).
        weights, used: (batch, heads, pieces, padded), before and after dropout; kept: its mask, or None.
    """

    scale: float
    factor: float
    q: Tensor
    k: Tensor
    v: Tensor
    weights: Tensor
    used: Tensor
    kept: Tensor | None

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, v: Tensor, batch: int, bias: Tensor | None, scale: float, dropout: float
    ) -> _Weighed:
        """The attention weights, of scores to which `bias` is added: (batch · heads, pieces, padded)."""
        keys = k.transpose(1, 2)
        scores = torch.bmm(q, keys).mul_(scale) if bias is None else torch.baddbmm(bias, q, keys, alpha=scale)
        weights = torch.softmax(scores.view(batch, -1, *scores.shape[1:]), -1)
        kept, factor = None, 1.0
        if acts_quickly(dropout):
            kept, factor = keep(tuple(weights.shape), dropout, weights.dtype)
        used = weights if kept is None else (weights * kept).mul_(factor)
        return cls(scale, factor, q, k, v, weights, used, kept)

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """What autograd keeps for the backward pass, and frees after it."""
        return self.q, self.k, self.v, self.weights, self.used, self.kept

    def attended(self) -> Tensor:
        """(batch · heads, pieces, dim)."""
        return torch.bmm(self.used.view(-1, *self.used.shape[2:]), self.v)

    def backward(
        self, gradient: Tensor, out: tuple[Tensor, Tensor, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """From `attended`'s gradient, (batch · heads, pieces, dim), to those of q, k and v, in their shapes.

        Args:
            out: where to write them, or None.
        """
        flat = (-1, *self.used.shape[2:])
        d_query, d_key, d_value = out or (None, None, None)
        d_value = torch.bmm(self.used.view(flat).transpose(1, 2), gradient, out=d_value)
        d_used = torch.bmm(gradient, self.v.transpose(1, 2)).view(self.weights.shape)
        # softmax's gradient is linear in this, so the scores' scale may go in here.
        d_weights = (d_used if self.kept is None else d_used.mul_(self.kept)).mul_(self.factor * self.scale)
        d_scores = torch.ops.aten._softmax_backward_data(d_weights, self.weights, -1, self.weights.dtype).view(flat)
        d_query = torch.bmm(d_scores, self.k, out=d_query)
        return d_query, torch.bmm(d_scores.transpose(1, 2), self.q, out=d_key), d_value


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        batch, heads, pieces, dim = query.shape
        wide = padded(pieces)
        rows = _rows(query, pieces), _rows(key, wide), _rows(value, wide)
        weighed = _Weighed.of(*rows, batch, bias, scale, dropout)
        ctx.save_for_backward(*weighed.tensors)
        ctx.scale, ctx.factor = scale, weighed.factor
        return weighed.attended().view(batch, heads, pieces, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        batch, heads, pieces, dim = gradients[0].shape
        weighed = _Weighed(ctx.scale, ctx.factor, *ctx.saved_tensors)
        found = weighed.backward(gradients[0].reshape(batch * heads, pieces, dim))
        opened = (d.view(batch, heads, -1, dim)[:, :, :pieces] for d in found)
        return (*opened, None, None, None)


class _UnpaddedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, unpadded: Unpadded, scale: float, dropout: float) -> Tensor:
        pieces, _, heads, dim = qkv.shape
        attended = qkv.new_empty(pieces, heads, dim)
        attended[len(unpadded.places) :] = 0.0
        kept: list[Tensor | None] = []
        for group in unpadded.groups:
            indices, own = group.indices(heads), slice(group.start, group.end)
            wide = qkv[own].view(-1, dim).index_select(0, indices.wide)
            q, k, v = wide.view(3, group.rows * heads, group.width, dim)
            weighed = _Weighed.of(q, k, v, group.rows, group.bias(heads, q.dtype), scale, dropout)
            torch.index_select(weighed.attended().view(-1, dim), 0, indices.back, out=attended[own].view(-1, dim))
            kept.extend(weighed.tensors)
        ctx.save_for_backward(*kept)
        ctx.unpadded, ctx.scale, ctx.factor = unpadded, scale, weighed.factor
        return attended

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradients[0].contiguous()
        pieces, heads, dim = gradient.shape
        found = gradient.new_empty(pieces, 3, heads, dim)
        found[len(ctx.unpadded.places) :] = 0.0
        kept, each = ctx.saved_tensors, len(ctx.saved_tensors) // len(ctx.unpadded.groups)
        for number, group in enumerate(ctx.unpadded.groups):
            weighed = _Weighed(ctx.scale, ctx.factor, *kept[number * each : (number + 1) * each])
            indices, own = group.indices(heads), slice(group.start, group.end)
            given = gradient.new_zeros(group.rows * heads, group.width, dim)  # 0 for the queries that are padding
            given.view(-1, dim).index_copy_(0, indices.back, gradient[own].view(-1, dim))
            wide = gradient.new_empty(3, *given.shape)
            weighed.backward(given, (wide[0], wide[1], wide[2]))
            torch.index_select(wide.view(-1, dim), 0, indices.back_qkv, out=found[own].view(-1, dim))
        return found, None, None, None
