"""A learned mixture of an encoder's layers (Peters et al. 2018, "Deep contextualized word representations", eq. 1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ScalarMix(nn.Module):
    """gamma * sum_j softmax(s)_j h_j, without layer normalisation.

    Starts as the plain mean of the layers: s = 0 and gamma = 1.

    Args:
        layers: how many layers are mixed, the embeddings counted.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.scalars = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Mix layers.

        Args:
            states: one (batch, pieces, dim) tensor a layer, bottom → top.

        Returns:
            (batch, pieces, dim), float32.
        """
        assert len(states) == len(self.scalars), f"{len(states)} layers for a mix of {len(self.scalars)}"
        weights = self.gamma * torch.softmax(self.scalars, 0)
        mixed = weights[0] * states[0].float()
        for weight, layer in zip(weights[1:], states[1:], strict=True):
            mixed = mixed + weight * layer.float()
        return mixed
