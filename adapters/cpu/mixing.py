"""The mix of layers where only its weights have a gradient: a quarter of the time, as nothing is widened in memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from meltpoint.adapters.cpu.kernels import mixing as kernels
from meltpoint.adapters.cpu.kernels.numbers import array
from meltpoint.adapters.cpu.kernels.threads import parallel_for


def mix(stacked: Tensor, weights: Tensor) -> Tensor:
    """(layers, T or 1, …) bf16 or float32 without a gradient, and (T, layers) float32 → (T, numbers) float32."""
    mixed: Tensor = _Mix.apply(stacked, weights)  # type: ignore[no-untyped-call]
    return mixed


class _Mix(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stacked: Tensor, weights: Tensor) -> Tensor:
        stacked = stacked.contiguous()
        layers, lanes = stacked.shape[:2]
        mixed = weights.new_empty(len(weights), stacked[0, 0].numel())
        given, by, into = array(stacked), array(weights.contiguous()), array(mixed)

        def run(first: int, last: int) -> None:
            end = min(last * kernels.SHARE, mixed.shape[1])
            kernels.forward(given, lanes, layers, by, first * kernels.SHARE, end, into)

        parallel_for(_shares(mixed.shape[1]), run)
        ctx.save_for_backward(stacked)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        """(T, numbers) → the weights' gradient, (T, layers), added up in double precision."""
        (stacked,) = ctx.saved_tensors
        layers, lanes = stacked.shape[:2]
        grads = gradient.new_zeros(_shares(gradient.shape[1]), len(gradient), layers, dtype=torch.float64)
        given, read, into = array(gradient.contiguous()), array(stacked), grads.view(-1).numpy()
        parallel_for(len(grads), lambda first, last: kernels.backward(given, read, lanes, layers, first, last, into))
        return None, grads.sum(0).to(gradient.dtype)


def _shares(numbers: int) -> int:
    """The number of shares of `SHARE` numbers."""
    return -(-numbers // kernels.SHARE)
