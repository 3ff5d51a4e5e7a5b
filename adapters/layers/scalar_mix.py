"""A learned mixture of an encoder's layers (Peters et al. 2018, "Deep contextualized word representations", eq. 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

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
            lanes = stacked.float().flatten(2).transpose(0, 1)  # (lanes, layers, numbers)
            # A product a member, also where all mix the same states: its bits are then those that it has alone.
            mixed = torch.bmm(weights[:, None], lanes.expand(trials, -1, -1))
            return mixed.view(trials, *stacked.shape[2:])

    def keep(self, members: Sequence[int]) -> None:
        """Continue with some members, in this order."""
        keep_members(self, members)
