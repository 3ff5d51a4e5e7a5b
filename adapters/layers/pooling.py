"""Pooling without parameters: a row's hidden states → one vector, padding left out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from meltpoint.adapters.layers.bundle import shares

Pooling = Callable[..., Tensor]
"""States (T, batch, positions, dim) of any float type, the mask (T, batch, positions), bool and True somewhere in every
row, and what else it needs, (T, …) → vectors (T, batch, …) float32."""


def pool_rows(pooling: Pooling, states: Tensor, mask: Tensor, *others: Tensor) -> Tensor:
    """Pool states: (T or 1, batch, positions, dim), by a mask (lanes, batch, positions) → (T or 1, batch, …)."""
    mask = mask.expand(len(states), -1, -1)
    return torch.cat([pooling(*share) for share in shares(states, mask, *others)])


def highest(states: Tensor, mask: Tensor) -> Tensor:
    """The maximum of each dimension."""
    return states.masked_fill(~mask[..., None], float("-inf")).amax(2).float()


def lowest(states: Tensor, mask: Tensor) -> Tensor:
    """The minimum of each dimension."""
    return states.masked_fill(~mask[..., None], float("inf")).amin(2).float()


def mean(states: Tensor, mask: Tensor) -> Tensor:
    """The mean."""
    total = states.masked_fill(~mask[..., None], 0.0).sum(2, dtype=torch.float32)
    return total / mask.sum(2, keepdim=True)


def first(states: Tensor, mask: Tensor) -> Tensor:
    """The state of the first piece that counts: [CLS], where the encoder has it."""
    return _at(states, mask.int().argmax(2)).float()


def first_and_last(states: Tensor, mask: Tensor) -> Tensor:
    """The first state that counts ⊕ the last one; (T, batch, 2 * dim)."""
    last = mask.shape[2] - 1 - mask.flip(2).int().argmax(2)
    return torch.cat([first(states, mask), _at(states, last).float()], -1)


def normalised(pooling: Pooling) -> Pooling:
    """A pooling whose vectors have length 1."""

    def pool(states: Tensor, mask: Tensor) -> Tensor:
        return functional.normalize(pooling(states, mask), dim=-1)

    return pool


def _at(states: Tensor, places: Tensor) -> Tensor:
    """The state at each row's place, (T, batch) → (T, batch, dim)."""
    return states.gather(2, places[..., None, None].expand(-1, -1, 1, states.shape[3])).squeeze(2)
