"""Attention of short sequences on a CPU, where torch's own kernels are at their worst.

`scaled_dot_product_attention` of torch 2.13 on a CPU goes two ways. With dropout it takes the plain formula; without, a
blocked kernel whose backward pass costs about 20 ms a layer for 32 × 12 × 26 × 32. And a bf16 `softmax` is slow where
a row is no multiple of 32 (26 pieces: 1.3 ms, 32 pieces: 0.4 ms). Here the keys are padded to that width inside the
attention alone, and the rest is six batched products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from meltpoint.adapters.dropout import acts_quickly, keep

NAME = "meltpoint_short"
"""What `attn_implementation` calls this in transformers."""

LANES = 32
"""Keys are padded to a multiple of this: bf16 numbers in one AVX-512 register."""

LONGEST = 128
"""Above this many pieces torch's blocked kernel serves where there is no dropout: its memory does not grow with L²."""

_NEVER = -1e30
"""Added to a score that must not count. Finite, so that a row without any key (a padded query) gives no NaN."""


def register() -> str:
    """Make transformers know this attention.

    Returns:
        its name there.
    """
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)
    return NAME


def attention_mask(*arguments: Any, **named: Any) -> Tensor | None:
    """transformers' own mask, (batch, 1, pieces, pieces) bool, or None where nothing is masked.

    On a GPU a given mask is always used: to find out that it masks nothing, transformers would wait for the GPU.
    """
    given = named.get("attention_mask")
    if given is not None and given.device.type != "cpu":
        named["allow_is_bidirectional_skip"] = False
    mask: Tensor | None = sdpa_mask(*arguments, **named)
    return mask


def attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    dropout: float = 0.0, scaling: float | None = None, is_causal: bool | None = None, **others: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """What transformers calls in each layer: `attend` on short CPU sequences, else torch's kernels.

    Args:
        query, key, value: (batch, heads, pieces, dim).
        attention_mask: (batch, 1, pieces, pieces) bool, True where attended, or None.

    Returns:
        ((batch, pieces, heads, dim), None).
    """
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    unusual = any(others.get(name) is not None for name in ("softcap", "position_bias", "cache"))
    masked = attention_mask is None or attention_mask.dtype == torch.bool
    short = query.shape[2] <= LONGEST or dropout > 0.0
    same = query.shape == key.shape == value.shape
    if query.device.type != "cpu" or unusual or causal or not (masked and short and same):
        found: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **others
        )
        return found
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return attend(query, key, value, attention_mask, scale, dropout).transpose(1, 2).contiguous(), None


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, dropout: float) -> Tensor:
    """softmax(query · keyᵀ · scale), masked and dropped, · value (Vaswani et al. 2017, eq. 1).

    Args:
        query, key, value: (batch, heads, pieces, dim).
        mask: broadcasts to (batch, heads, pieces, pieces), True where attended.
        dropout: the share of attention weights that is dropped.

    Returns:
        (batch, heads, pieces, dim).
    """
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    bias = _bias(mask, query)
    attended: Tensor = _Attention.apply(query, key, value, bias, scale, dropout)  # type: ignore[no-untyped-call]
    return attended


def _bias(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """What is added to the scores: 0, or a huge negative number; (batch or 1, heads or 1, pieces or 1, padded)."""
    pieces = query.shape[2]
    padded = _padded(pieces)
    if mask is None and padded == pieces:
        return None
    # A mask of padding alone says the same for every query: one line of it will do (the stride tells).
    lines = (1, 1, 1, pieces) if mask is None else (*mask.shape[:2], 1 if mask.stride(2) == 0 else pieces, pieces)
    bias = query.new_full((*lines[:3], padded), _NEVER)
    bias[..., :pieces] = 0.0 if mask is None else bias[..., :pieces].masked_fill(mask[:, :, : lines[2]], 0.0)
    return bias


def _padded(pieces: int) -> int:
    return -(-pieces // LANES) * LANES


def _rows(states: Tensor, rows: int) -> Tensor:
    """(batch, heads, pieces, dim) → (batch · heads, rows, dim), zero after the pieces."""
    batch, heads, pieces, dim = states.shape
    if rows == pieces:
        return states.reshape(batch * heads, pieces, dim)
    wide = states.new_empty(batch, heads, rows, dim)
    wide[:, :, :pieces] = states
    wide[:, :, pieces:] = 0.0
    return wide.view(batch * heads, rows, dim)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, scale: float, dropout: float
    ) -> Tensor:
        batch, heads, pieces, dim = query.shape
        wide = _padded(pieces)
        q, k, v = _rows(query, pieces), _rows(key, wide), _rows(value, wide)
        scores = torch.bmm(q, k.transpose(1, 2)).view(batch, heads, pieces, wide).mul_(scale)
        weights = torch.softmax(scores if bias is None else scores.add_(bias), -1)
        kept, factor = None, 1.0
        if acts_quickly(dropout):
            kept, factor = keep(tuple(weights.shape), dropout, weights.dtype)
        used = weights if kept is None else (weights * kept).mul_(factor)
        ctx.save_for_backward(q, k, v, weights, used, kept)
        ctx.scale, ctx.factor = scale, factor
        return torch.bmm(used.view(batch * heads, pieces, wide), v).view(batch, heads, pieces, dim)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, used, kept = ctx.saved_tensors
        shape, wide = gradients[0].shape, weights.shape[-1]
        batch, heads, pieces, dim = shape
        gradient = gradients[0].reshape(batch * heads, pieces, dim)
        d_value = torch.bmm(used.view(batch * heads, pieces, wide).transpose(1, 2), gradient)
        d_used = torch.bmm(gradient, v.transpose(1, 2)).view(weights.shape)
        # softmax's gradient is linear in this, so the scores' scale may go in here.
        d_weights = (d_used if kept is None else d_used.mul_(kept)).mul_(ctx.factor * ctx.scale)
        d_scores = torch.ops.aten._softmax_backward_data(d_weights, weights, -1, weights.dtype)
        d_scores = d_scores.view(batch * heads, pieces, wide)
        d_query, d_key = torch.bmm(d_scores, k), torch.bmm(d_scores.transpose(1, 2), q)
        opened = (d.view(batch, heads, -1, dim)[:, :, :pieces] for d in (d_query, d_key, d_value))
        return (*opened, None, None, None)
