"""From many states to the ones that a head reads: a mixture of the encoder's layers, and pooling of a row's pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.layers.bundle import keep_members, shares


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


Pooling = Callable[..., Tensor]
"""States (T, batch, positions, dim) of any float type, the mask (T, batch, positions), bool and True somewhere in every
row, and further arguments, (T, …) → vectors (T, batch, …) float32."""


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


def _at(states: Tensor, indices: Tensor) -> Tensor:
    """The state at each row's index, (T, batch) → (T, batch, dim)."""
    return states.gather(2, indices[..., None, None].expand(-1, -1, 1, states.shape[3])).squeeze(2)
