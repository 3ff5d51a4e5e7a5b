"""GELU on a CPU by one loop each way; on a GPU torch's own kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers.activations import GELUActivation

from meltpoint.adapters.cpu.kernels import gelu as kernels
from meltpoint.adapters.cpu.kernels.numbers import TYPES, array
from meltpoint.adapters.cpu.kernels.threads import parallel_for


class Gelu(nn.Module):
    """GELU with the exact error function (Hendrycks & Gimpel 2016)."""

    def forward(self, states: Tensor) -> Tensor:
        """Element by element, of the same type."""
        if states.device.type != "cpu" or states.dtype not in TYPES:
            return functional.gelu(states)
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


def replace_gelus(model: nn.Module) -> None:
    """Put a `Gelu` where transformers' exact one is."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is GELUActivation and child.act is functional.gelu:
                setattr(parent, name, Gelu())
