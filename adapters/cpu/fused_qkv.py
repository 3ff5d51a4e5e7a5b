"""The fused QKV projection: queries, keys and values by one product, as the attention without padding reads them.

Under autocast each of three linear layers makes its own bf16 copy of the states, and hands back its own gradient to be
made float32 and added; their outputs are gathered into rows one by one. As one layer of three times the width it is the
same function, and a fine-tuning step is 2 to 3 % shorter (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.cpu.attention import autocast_dtype
from meltpoint.adapters.cpu.unpadded_attention import attend_qkv
from meltpoint.adapters.data.unpadding import Unpadded


def self_attend(
    states: Tensor, projections: Sequence[nn.Linear], heads: int, unpadded: Unpadded, scale: float, dropout: float
) -> Tensor:
    """`ops.self_attend` of bf16 or float32 on the CPU: (rounded pieces, dim) → (rounded pieces, heads · size)."""
    qkv = functional.linear(states, *_joined(projections)).view(len(states), 3, heads, -1)
    return attend_qkv(qkv, unpadded, scale, dropout).flatten(1)


def _joined(layers: Sequence[nn.Linear]) -> tuple[Tensor, Tensor]:
    """Weight, (3 · dim, dim), and bias, (3 · dim,), of the three as one layer, in autocast's type."""
    dtype = autocast_dtype(layers[0].weight.dtype)
    weight = _concatenate(dtype, *(layer.weight for layer in layers))
    return weight, _concatenate(dtype, *(layer.bias for layer in layers))


def _concatenate(dtype: torch.dtype, *parts: Tensor) -> Tensor:
    """(rows, …), … → (all rows, …)."""
    joined: Tensor = _Concatenation.apply(dtype, *parts)  # type: ignore[no-untyped-call]
    return joined


class _Concatenation(torch.autograd.Function):
    """`torch.cat` into another type: each number is read and written once, and not by cat and cast in turn."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *parts: Tensor) -> Tensor:
        ctx.sizes, ctx.dtype = [len(part) for part in parts], parts[0].dtype
        joined = parts[0].new_empty(sum(ctx.sizes), *parts[0].shape[1:], dtype=dtype)
        for place, part in zip(torch.split(joined, ctx.sizes), parts, strict=True):
            place.copy_(part)
        return joined

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(own.to(ctx.dtype) for own in torch.split(gradients[0], ctx.sizes))
