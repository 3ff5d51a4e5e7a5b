"""Dropout, residual and layer norm in one pass: half of what surrounds a transformer layer's products.

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
from meltpoint.adapters.cpu.kernels.numbers import array
from meltpoint.adapters.cpu.kernels.threads import parallel_for


def residual_norm(states: Tensor, residual: Tensor, norm: nn.LayerNorm, ratio: float) -> Tensor:
    """`ops.residual_norm` of bf16 or float32 states on the CPU: float32, as torch's layer norm under autocast."""
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
