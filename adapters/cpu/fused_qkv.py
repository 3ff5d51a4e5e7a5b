"""The fused QKV projection: queries, keys and values by one product on a CPU, as attention without padding reads them.

BERT's attention has three linear layers over the same states. Under autocast each makes its own bf16 copy of them, and
hands back its own gradient to be made float32 and added; their outputs are gathered into rows one by one. As one layer
of three times the width it is the same function, and a fine-tuning step is 2 to 3 % shorter (docs/log.md).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.cpu.attention import autocast_dtype
from meltpoint.adapters.cpu.unpadded_attention import attend_qkv, attends_short
from meltpoint.adapters.data.unpadding import UNPADDED, Unpadded

_PARTS = ("query", "key", "value")


class _FusedQkv(nn.Module):
    """Stands before an attention's own class, whose weights and names stay as they are."""

    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    dropout: nn.Dropout
    num_attention_heads: int
    attention_head_size: int

    def forward(self, hidden_states: Tensor, *arguments: Any, **named: Any) -> Any:
        """(1, rounded pieces, dim) → the same, and no attention weights."""
        unpadded: Unpadded | None = named.get(UNPADDED)
        ratio = self.dropout.p if self.training else 0.0
        if unpadded is None or not attends_short(hidden_states, unpadded, ratio):
            return super().forward(hidden_states, *arguments, **named)
        heads, size = self.num_attention_heads, self.attention_head_size
        qkv = functional.linear(hidden_states[0], *self.joined()).view(-1, 3, heads, size)
        return attend_qkv(qkv, unpadded, size**-0.5, ratio).flatten(1)[None], None

    def joined(self) -> tuple[Tensor, Tensor]:
        """Weight, (3 · dim, dim), and bias, (3 · dim,), of the three as one layer, in autocast's type."""
        layers = self.query, self.key, self.value
        dtype = autocast_dtype(self.query.weight.dtype)
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


def adopt(attention: nn.Module) -> bool:
    """Make an attention compute its queries, keys and values at once.

    Returns:
        Whether it is made as BERT's is; else it was left as it was.
    """
    parts = [getattr(attention, part, None) for part in _PARTS]
    if not all(type(part) is nn.Linear and part.bias is not None for part in parts):
        return False
    sizes = [getattr(attention, name, None) for name in ("num_attention_heads", "attention_head_size")]
    is_sized = all(isinstance(size, int) for size in sizes)
    if not is_sized or not isinstance(getattr(attention, "dropout", None), nn.Dropout):
        return False
    if getattr(attention, "is_decoder", False):
        return False
    attention.__class__ = type(f"Fused{type(attention).__name__}", (_FusedQkv, type(attention)), {})
    return True
