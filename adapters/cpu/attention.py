"""Attention of short padded rows on a CPU, where torch's own kernels are at their worst.

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

from meltpoint.adapters.cpu.dropout import acts_quickly, keep

NEVER = -1e30
"""Added to a score that must not count. Finite, so that a row without any key (a padded query) gives no NaN."""

KEY_MULTIPLE = 32
"""Keys of padded rows are padded to a multiple of this: bf16 numbers in one AVX-512 register."""


def padded(pieces: int) -> int:
    """The keys' width in an attention of so many pieces."""
    return -(-pieces // KEY_MULTIPLE) * KEY_MULTIPLE


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, dropout: float) -> Tensor:
    """`ops.attend` of (batch, heads, pieces, dim), bf16 or float32 on the CPU."""
    query, key, value = in_autocast(query, key, value)
    bias = _bias(mask, query)
    attended: Tensor = _Attention.apply(query, key, value, bias, scale, dropout)  # type: ignore[no-untyped-call]
    return attended


def in_autocast(*states: Tensor) -> tuple[Tensor, ...]:
    """The same in autocast's type where it is on: autograd functions of one's own do not get that by themselves."""
    return tuple(one.to(autocast_dtype(one.dtype)) for one in states)


def autocast_dtype(own: torch.dtype) -> torch.dtype:
    """The type that autocast computes in on a CPU; `own` where it is off."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else own


def _bias(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """The bias of the scores: 0 or `NEVER`, (batch · heads, pieces, padded); None where it is 0 everywhere."""
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
        """The tensors that autograd keeps for the backward pass, and frees after it."""
        return self.q, self.k, self.v, self.weights, self.used, self.kept

    def attended(self) -> Tensor:
        """(batch · heads, pieces, dim)."""
        return torch.bmm(self.used.view(-1, *self.used.shape[2:]), self.v)

    def backward(self, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """From `attended`'s gradient, (batch · heads, pieces, dim), to those of q, k and v, in their shapes."""
        flat = (-1, *self.used.shape[2:])
        d_value = torch.bmm(self.used.view(flat).transpose(1, 2), gradient)
        d_used = torch.bmm(gradient, self.v.transpose(1, 2)).view(self.weights.shape)
        # softmax's gradient is linear in this, so the scores' scale may go in here.
        d_weights = (d_used if self.kept is None else d_used.mul_(self.kept)).mul_(self.factor * self.scale)
        d_scores = torch.ops.aten._softmax_backward_data(d_weights, self.weights, -1, self.weights.dtype).view(flat)
        return torch.bmm(d_scores, self.k), torch.bmm(d_scores.transpose(1, 2), self.q), d_value


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
