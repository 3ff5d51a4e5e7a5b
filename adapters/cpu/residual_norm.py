"""Dropout, residual and layer norm at once on a CPU: half of what surrounds a transformer layer's products.

BERT's layers end both their halves with `LayerNorm(dropout(dense(x)) + residual)`. Operation by operation that is eight
passes over memory forward and six backward, and a mask that is kept; here it is one each way, and no mask.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from meltpoint.adapters.cpu.kernels import residual_norm as kernels
from meltpoint.adapters.cpu.kernels.dropping import Dropping
from meltpoint.adapters.cpu.kernels.numbers import TYPES, array
from meltpoint.adapters.cpu.kernels.threads import parallel_for


def residual_norm(states: Tensor, residual: Tensor, norm: nn.LayerNorm, ratio: float) -> Tensor:
    """norm(dropout(states) + residual).

    Args:
        states, residual: (…, dim), bf16 or float32 each, on the CPU.
        norm: over the last dimension, with weight and bias in float32.
        ratio: the share of `states` that is dropped.

    Returns:
        (…, dim) float32, as torch's layer norm under autocast.
    """
    read = states, residual, norm.weight, norm.bias
    trains = torch.is_grad_enabled() and any(one.requires_grad for one in read)
    found: Tensor = _ResidualNorm.apply(*read, norm.eps, ratio, trains)  # type: ignore[no-untyped-call]
    return found


class _ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, epsilon: float, ratio: float,
        trains: bool,
    ) -> Tensor:  # fmt: skip
        states, residual = states.contiguous(), residual.contiguous()
        lines = states.numel() // len(weight)
        sums, normed = torch.empty(states.shape if trains else 0), torch.empty(states.shape)
        moments = torch.empty(lines, 2)
        dropping = Dropping.drawn(ratio)
        read = [array(tensor) for tensor in (states, residual, weight, bias)]
        written = [array(tensor) for tensor in (sums, moments, normed)]

        def run(first: int, last: int) -> None:
            kernels.forward(
                *read, np.float32(epsilon), dropping.seed, dropping.level, dropping.factor, first, last, *written
            )

        parallel_for(lines, run)
        ctx.save_for_backward(sums, moments, weight)
        ctx.dropping, ctx.types = dropping, (states.dtype, residual.dtype)
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        sums, moments, weight = ctx.saved_tensors
        dropping: Dropping = ctx.dropping
        by_states, by_residual = (torch.empty(sums.shape, dtype=dtype) for dtype in ctx.types)
        shares = -(-len(moments) // kernels.SHARE)
        by_weight, by_bias = (torch.zeros(shares, len(weight)) for _ in range(2))
        read = [array(tensor) for tensor in (gradient.contiguous(), sums, moments, weight)]
        written = [array(tensor) for tensor in (by_states, by_residual, by_weight, by_bias)]

        def run(first: int, last: int) -> None:
            kernels.backward(*read, dropping.seed, dropping.level, dropping.factor, first, last, *written)

        parallel_for(shares, run)
        return by_states, by_residual, by_weight.sum(0), by_bias.sum(0), None, None, None


class _FusedOutput(nn.Module):
    """Stands before an output's own class, whose weights and names stay as they are."""

    dense: nn.Linear
    dropout: nn.Dropout
    LayerNorm: nn.LayerNorm

    def forward(self, hidden_states: Tensor, input_tensor: Tensor) -> Tensor:
        """(…, wide), (…, dim) → (…, dim)."""
        states = self.dense(hidden_states)
        readable = all(one.device.type == "cpu" and one.dtype in TYPES for one in (states, input_tensor))
        if not readable or self.LayerNorm.weight.dtype != torch.float32:
            whole: Tensor = self.LayerNorm(self.dropout(states) + input_tensor)
            return whole
        return residual_norm(states, input_tensor, self.LayerNorm, self.dropout.p if self.training else 0.0)


def adopt(output: nn.Module) -> bool:
    """Make the end of half a layer compute its dropout, residual and norm at once.

    Returns:
        Whether it is made as BERT's are; else it was left as it was.
    """
    if [name for name, _ in output.named_children()] != ["dense", "LayerNorm", "dropout"]:
        return False
    dense, norm, dropout = output.children()
    if type(dense) is not nn.Linear or type(norm) is not nn.LayerNorm or not isinstance(dropout, nn.Dropout):
        return False
    if norm.weight is None or norm.bias is None or norm.normalized_shape != (dense.out_features,):
        return False
    output.__class__ = type(f"Fused{type(output).__name__}", (_FusedOutput, type(output)), {})
    return True


def release(output: nn.Module) -> None:
    """Give an adopted module its own class back."""
    if isinstance(output, _FusedOutput):
        output.__class__ = type(output).__mro__[2]
