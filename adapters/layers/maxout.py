"""Maxout (Goodfellow et al. 2013): a unit is the largest of several linear ones."""

from __future__ import annotations

from torch import Tensor, nn

from meltpoint.adapters.layers.affine import Affine
from meltpoint.adapters.layers.bundle import Bundle


class Maxout(nn.Module):
    """h_i = max_j (x · w_ij + b_ij), as AllenNLP's Maxout has it: neighbouring linear units compete.

    Args:
        inputs: size of a vector.
        outputs: number of units.
        competitors: number of linear units that each is the largest of.
        bundle: the members. Initial weights have the variance of torch.nn.Linear's, 1 / (3 inputs), as in AllenNLP.
    """

    def __init__(self, inputs: int, outputs: int, competitors: int, bundle: Bundle) -> None:
        super().__init__()
        self.outputs = outputs
        self.affine = Affine(inputs, outputs * competitors, bundle, std=(3 * inputs) ** -0.5)

    def forward(self, states: Tensor) -> Tensor:
        """(T or 1, …, inputs) → (T, …, outputs)."""
        linear = self.affine(states)
        return linear.view(*linear.shape[:-1], self.outputs, -1).amax(-1)
