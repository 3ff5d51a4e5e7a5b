"""A learned mixture of an encoder's layers (Peters et al. 2018, "Deep contextualized word representations", eq. 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from meltpoint.adapters.cpu.kernels import mixing as kernels
from meltpoint.adapters.cpu.kernels.numbers import TYPES, array
from meltpoint.adapters.cpu.kernels.threads import parallel_for
from meltpoint.adapters.layers.bundle import keep_members


class ScalarMix(nn.Module):
    """gamma * sum_j softmax(s)_j h_j, without layer normalisation; one mix a member of a bundle.

    Starts as the plain mean of the layers: s = 0 and gamma = 1.

    Args:
        layers: number of layers that are mixed, the embeddings counted.
        trials: number of members.
    """

    def __init__(self, layers: int, trials: int = 1) -> None:
        super().__init__()
        self.scalars = nn.Parameter(torch.zeros(trials, layers))
        self.gamma = nn.Parameter(torch.ones(trials))

    def forward(self, states: Tensor | Sequence[Tensor]) -> Tensor:
        """Mix layers.

        Args:
            states: (layers, lanes, batch, positions, dim), bottom → top, of any float type; or as many tensors of
                (lanes, batch, positions, dim). Where lanes is 1, all members mix the same states.

        Returns:
            (T, batch, positions, dim), float32.
        """
        trials, layers = self.scalars.shape
        assert len(states) == layers, f"{len(states)} layers for a mix of {layers}"
        stacked = states if isinstance(states, Tensor) else torch.stack(tuple(states))
        assert stacked.shape[1] in (1, trials), f"{stacked.shape[1]} lanes for {trials} members"
        weights = self.gamma[:, None] * torch.softmax(self.scalars, 1)  # (T, layers)
        with torch.autocast(stacked.device.type, enabled=False):
            by_kernel = stacked.device.type == "cpu" and stacked.dtype in TYPES and not stacked.requires_grad
            mixed: Tensor = _Mix.apply(stacked, weights) if by_kernel else _mixed(stacked, weights)  # type: ignore[no-untyped-call]
        return mixed.view(trials, *stacked.shape[2:])

    def keep(self, members: Sequence[int]) -> None:
        """Continue with some members, in this order."""
        keep_members(self, members)


def _mixed(stacked: Tensor, weights: Tensor) -> Tensor:
    """(layers, T or 1, …) and (T, layers) → (T, 1, numbers) float32: Peters et al. 2018, eq. 1."""
    lanes = stacked.float().flatten(2).transpose(0, 1)  # (lanes, layers, numbers)
    # A product a member, also where all mix the same states, for the bundle's promise.
    return torch.bmm(weights[:, None], lanes.expand(len(weights), -1, -1))


class _Mix(torch.autograd.Function):
    """The same where only the weights have a gradient, in a quarter of the time: no float32 copy of the states."""

    @staticmethod
    def forward(ctx: Any, stacked: Tensor, weights: Tensor) -> Tensor:
        """(layers, T or 1, …) bf16 or float32, and (T, layers) float32 → (T, numbers) float32."""
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
    """Number of shares of `SHARE` numbers."""
    return -(-numbers // kernels.SHARE)
