"""Linear layers of several trials side by side, each on its own rows: LoRA's matrices on one frozen encoder.

On a GPU, a small batch takes about as long as its kernels take to follow one another, whatever they compute. So trials
that share an encoder's frozen weights read a batch together: the frozen layers see the trials' rows as one batch, and
each trial's thin matrices are one part of a grouped product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.layers.bundle import keep_members


class SideBySide(nn.Module):
    """A linear layer without bias for each of T trials, whose rows follow one another in a batch.

    Layers of several sizes are padded with zeros: their gradients are 0, so they stay 0.

    Args:
        layers: one per trial.
        factors: one per trial, by which its result is multiplied.

    Attributes:
        weight: (T, out, in).
        factors: (T, 1, 1).
        sizes: (out, in) of each trial.
    """

    factors: Tensor

    def __init__(self, layers: Sequence[nn.Linear], factors: Sequence[float]) -> None:
        super().__init__()
        self.sizes = [(layer.out_features, layer.in_features) for layer in layers]
        rows, columns = map(max, zip(*self.sizes, strict=True))
        every = [functional.pad(layer.weight.detach(), (0, columns - size[1], 0, rows - size[0]))
                 for layer, size in zip(layers, self.sizes, strict=True)]  # fmt: skip
        self.weight = nn.Parameter(torch.stack(every))
        numbers = torch.tensor(factors, device=self.weight.device)[:, None, None]
        self.register_buffer("factors", numbers, persistent=False)

    def forward(self, states: Tensor) -> Tensor:
        """(T · batch, …, in) → (T · batch, …, out).

        Raises:
            RuntimeError: the first dimension does not hold T parts.
        """
        trials = len(self.weight)
        own = states.view(trials, len(states) // trials, *states.shape[1:]).flatten(1, -2)
        found = torch.bmm(own, (self.weight * self.factors).transpose(1, 2))
        return found.view(*states.shape[:-1], -1)

    def of(self, member: int) -> Tensor:
        """A trial's weight, (out, in), as its layer has it alone."""
        rows, columns = self.sizes[member]
        return self.weight.detach()[member, :rows, :columns]

    def keep(self, members: Sequence[int]) -> None:
        """Continue with some trials, in this order."""
        keep_members(self, members)
        self.factors = self.factors[torch.tensor(members, device=self.factors.device)]
        self.sizes = [self.sizes[member] for member in members]
