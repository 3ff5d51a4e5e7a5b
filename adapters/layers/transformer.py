"""A transformer encoder (Vaswani et al. 2017, section 3) for every member of a bundle; padding does not change it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters import ops
from meltpoint.adapters.layers.affine import Affine
from meltpoint.adapters.layers.bundle import Bundle, shares


class Transformer(nn.Module):
    """Sinusoidal positions, layers of self-attention and feed-forward that each read normalised states and add, a norm.

    The norm comes before a sub-layer, not after the sum, and once more at the end: a stacked head has no warm-up, which
    the original needs (Xiong et al. 2020, "On Layer Normalization in the Transformer Architecture"). Dropout acts on
    what each sub-layer adds (Vaswani et al. 2017, section 5.4), and not on the sum of states and positions, which lives
    on to the end: a maximum over places of sines that are dropped and scaled up is larger than without dropout, and a
    head that has learnt with it gave one class at evaluation (docs/log.md, 2026-11-26). Initialisation: Kaiming (He et
    al. 2015; arXiv 1907.05338 uses it for stacked heads).

    Args:
        dim: size of a state; a multiple of `heads`, and even.
        bundle: the members; their `dropout` is taken.
        layers: number of layers.
        heads: attention heads a layer.
        feed_forward: units of each layer's hidden layer.
    """

    def __init__(self, dim: int, bundle: Bundle, layers: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(dim, bundle, heads, feed_forward) for _ in range(layers))
        self.norm = LayerNorm(dim, bundle)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(T, batch, positions, dim) → the same shape, anything on padding.

        Args:
            states: the states before positions are added.
            mask: (lanes, batch, positions) bool, True on real positions.
        """
        states = states + positions(states.shape[2], states.shape[3], states.device)
        for layer in self.layers:
            states = layer(states, mask)
        return self.norm(states)


class TransformerLayer(nn.Module):
    """Self-attention and a feed-forward layer with a ReLU; arguments as `Transformer`'s."""

    def __init__(self, dim: int, bundle: Bundle, heads: int, feed_forward: int) -> None:
        super().__init__()
        assert dim % heads == 0, "each attention head has as many numbers of a state as any other"
        self.heads = heads
        self.projections = Affine(dim, 3 * dim, bundle)
        self.output = Affine(dim, dim, bundle)
        self.first_norm, self.second_norm = LayerNorm(dim, bundle), LayerNorm(dim, bundle)
        self.hidden = Affine(dim, feed_forward, bundle, "relu")
        self.back = Affine(feed_forward, dim, bundle)
        self.dropout = bundle.dropout()

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(T, batch, positions, dim) → the same shape; the mask is `Transformer`'s."""
        states = states + self.dropout(self.output(self._attended(self.first_norm(states), mask)))
        return states + self.dropout(self.back(functional.relu(self.hidden(self.second_norm(states)))))

    def _attended(self, states: Tensor, mask: Tensor) -> Tensor:
        """Every position's mix of all real ones: (T, batch, positions, dim).

        On a CPU a member at a time, for the bundle's promise: a batched product of bf16 rounds by its batch.
        """
        projected, masks = self.projections(states), mask.expand(len(states), -1, -1)
        return torch.cat([self._mixed(*share) for share in shares(projected, masks)])

    def _mixed(self, projected: Tensor, mask: Tensor) -> Tensor:
        """(members, batch, positions, 3 · dim) and (members, batch, positions) → (members, batch, positions, dim)."""
        members, batch, count, _ = projected.shape
        parts = projected.view(members * batch, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)  # each (members · batch, heads, positions, dim / heads)
        keys = mask.flatten(0, 1)[:, None, None].expand(-1, -1, count, -1)
        mixed = ops.attend(query, key, value, keys, query.shape[-1] ** -0.5, dropout=0.0)
        return mixed.transpose(1, 2).reshape(members, batch, count, -1)


class LayerNorm(nn.Module):
    """Layer normalisation (Ba, Kiros & Hinton 2016) with a scale and a shift a member; float32 also under autocast."""

    __call__: Callable[..., Tensor]

    def __init__(self, dim: int, bundle: Bundle) -> None:
        super().__init__()
        self.weight = bundle.parameter(dim, fill=lambda own, _: nn.init.ones_(own))
        self.bias = bundle.parameter(dim, fill=lambda own, _: nn.init.zeros_(own))

    def forward(self, states: Tensor) -> Tensor:
        """(T, batch, positions, dim) of any float type → the same shape."""
        exact = states.to(torch.promote_types(states.dtype, torch.float32))
        normed = functional.layer_norm(exact, exact.shape[-1:])
        return torch.addcmul(self.bias[:, None, None], normed, self.weight[:, None, None])


def positions(count: int, dim: int, device: torch.device) -> Tensor:
    """Vaswani et al. 2017, section 3.5: sines at even places, cosines at odd ones, (count, dim) float32."""
    places = torch.arange(count, device=device, dtype=torch.float32)[:, None]
    rates = 10_000 ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    return torch.stack([(places * rates).sin(), (places * rates).cos()], -1).flatten(1)
