"""Attention of a row over its own subword tokens: bi-attention with itself, and pooling by learned weights.

Both in float32 also under autocast: attention scores are sums of hundreds of products, unscaled, and bf16 has 8 bits.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from meltpoint.adapters.layers.affine import exact
from meltpoint.adapters.layers.bundle import Bundle
from meltpoint.adapters.layers.pooling import pool_rows


def attend_to_itself(states: Tensor, mask: Tensor) -> Tensor:
    """Attention to the own row: c_i = Σ_j softmax_j(x_i · x_j) x_j over the real tokens j, i among them.

    The bi-attention of McCann et al. 2017, section 5, where both texts are the same. As in AllenNLP only padding is
    masked, not the diagonal.

    Args:
        states: x, (T, batch, pieces, dim) of any float type.
        mask: (lanes, batch, pieces) bool, True on real pieces.

    Returns:
        c, (T, batch, pieces, dim) float32; undefined on padding.
    """
    with torch.autocast(states.device.type, enabled=False):
        return pool_rows(_attended, states, mask)


def _attended(states: Tensor, mask: Tensor) -> Tensor:
    own = exact(states)
    scores = (own @ own.transpose(2, 3)).masked_fill(~mask[:, :, None], float("-inf"))
    return torch.softmax(scores, -1) @ own


class AttentivePooling(nn.Module):
    """Σ_i softmax_i(w · x_i) x_i over the real pieces, w learned (McCann et al. 2017, section 5).

    AllenNLP adds a bias to w · x_i, which the softmax takes out again; there is none here.

    Args:
        inputs: size of a state.
        bundle: the members. Initial weights have the variance of torch.nn.Linear's, 1 / (3 inputs), as in AllenNLP.
    """

    def __init__(self, inputs: int, bundle: Bundle) -> None:
        super().__init__()

        def fill(own: Tensor, generator: torch.Generator) -> None:
            nn.init.normal_(own, std=(3 * inputs) ** -0.5, generator=generator)

        self.weight = bundle.parameter(1, inputs, fill=fill)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(T, batch, pieces, inputs) of any float type → (T, batch, inputs) float32."""
        with torch.autocast(states.device.type, enabled=False):
            return pool_rows(_weighted, states, mask, self.weight)


def _weighted(states: Tensor, mask: Tensor, weight: Tensor) -> Tensor:
    own = exact(states)
    scores = (own @ weight[:, :, :, None])[..., 0].masked_fill(~mask, float("-inf"))
    return (torch.softmax(scores, -1)[:, :, None] @ own)[:, :, 0]
