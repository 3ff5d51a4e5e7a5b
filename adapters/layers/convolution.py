"""One-dimensional convolutions over a row's subword tokens, for every member of a bundle."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.layers.bundle import Bundle


def windows(states: Tensor, size: int) -> Tensor:
    """Each token's state concatenated with its neighbours'; zeros beyond the first and the last one.

    Args:
        states: (…, pieces, dim).
        size: tokens in a window; with an even one, one token more lies behind the middle than before it.

    Returns:
        (…, pieces, size * dim), the window's states one after another.
    """
    before = (size - 1) // 2
    padded = functional.pad(states, (0, 0, before, size - 1 - before))
    return torch.cat([padded.narrow(-2, place, states.shape[-2]) for place in range(size)], -1)


class GroupedConvolution(nn.Module):
    """Convolutions side by side, each over channels of its own, without biases; padding is what the caller made zero.

    Computed as windows and a batched product, one a member and group, so that the gradient is a product too.

    Args:
        inputs: channels that a group reads.
        outputs: channels that a group gives.
        size: subword tokens in a window.
        groups: number of convolutions.
        bundle: the members.
        std: standard deviation of the initial weights.
    """

    def __init__(self, inputs: int, outputs: int, size: int, groups: int, bundle: Bundle, std: float) -> None:
        super().__init__()
        self.size = size

        def fill(own: Tensor, generator: torch.Generator) -> None:
            nn.init.normal_(own, std=std, generator=generator)

        self.weight = bundle.parameter(groups, outputs, size * inputs, fill=fill)

    def forward(self, states: Tensor) -> Tensor:
        """(T, groups, batch, pieces, inputs) → (T, groups, batch, pieces, outputs)."""
        rows = windows(states, self.size).flatten(2, 3).flatten(0, 1)  # (T * groups, batch * pieces, size * inputs)
        found = torch.bmm(rows, self.weight.flatten(0, 1).transpose(1, 2))
        return found.view(*states.shape[:-1], -1)
