"""GELU by one loop forward and one backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from meltpoint.adapters.cpu.kernels import gelu as kernels
from meltpoint.adapters.cpu.kernels.numbers import array
from meltpoint.adapters.cpu.kernels.threads import parallel_for


def gelu(states: Tensor) -> Tensor:
    """GELU with the exact error function, of bf16 or float32 on the CPU."""
    found: Tensor = _Gelu.apply(states.contiguous())  # type: ignore[no-untyped-call]
    return found


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor) -> Tensor:
        found = torch.empty_like(states)
        read, written = array(states), array(found)
        parallel_for(states.numel(), lambda first, last: kernels.forward(read, first, last, written))
        ctx.save_for_backward(states)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (states,) = ctx.saved_tensors
        found = torch.empty_like(states)
        given, read, written = array(gradient.contiguous()), array(states), array(found)
        parallel_for(states.numel(), lambda first, last: kernels.backward(given, read, first, last, written))
        return found
