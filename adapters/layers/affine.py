"""Layers of most heads: the mix of the encoder's layers, pooling, affine layers, maxout and the score layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.layers.bundle import Bundle, Layer, lanes_of, normal, shares


class ScalarMix(Layer):
    """gamma * sum_j softmax(s)_j h_j, without layer normalisation; one mix per member of a bundle.

    It starts as the plain mean of the layers: s = 0 and gamma = 1.

    Args:
        layers: number of layers to mix, including the embeddings.
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
                (lanes, batch, positions, dim). If lanes is 1, all members mix the same states.

        Returns:
            (T, batch, positions, dim), float32.
        """
        trials = len(self.scalars)
        stacked = states if isinstance(states, Tensor) else torch.stack(tuple(states))
        weights = self.gamma[:, None] * torch.softmax(self.scalars, 1)  # (T, layers)
        with torch.autocast(stacked.device.type, enabled=False):
            lanes = stacked.float().flatten(2).transpose(0, 1)  # (lanes, layers, numbers)
            # One product per member, even if all mix the same states, so that its bits are the same as alone.
            mixed = torch.bmm(weights[:, None], lanes.expand(trials, -1, -1))
            return mixed.view(trials, *stacked.shape[2:])


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
    """The state of the first unmasked piece: [CLS], if the encoder has it."""
    return state_at(states, mask.int().argmax(2)).float()


def first_and_last(states: Tensor, mask: Tensor) -> Tensor:
    """The first unmasked state ⊕ the last one; (T, batch, 2 * dim)."""
    last = mask.shape[2] - 1 - mask.flip(2).int().argmax(2)
    return torch.cat([first(states, mask), state_at(states, last).float()], -1)


POOLINGS: Mapping[str, Pooling] = {"max": highest, "mean": mean, "first_last": first_and_last, "cls": first}
"""Kind of pooling → its function."""


def normalised(pooling: Pooling) -> Pooling:
    """A pooling whose vectors have length 1."""

    def pool(states: Tensor, mask: Tensor) -> Tensor:
        return functional.normalize(pooling(states, mask), dim=-1)

    return pool


def state_at(states: Tensor, indices: Tensor) -> Tensor:
    """The state at each row's index: (T or 1, batch, positions, dim), by (T or lanes, batch) → (T or 1, batch, dim)."""
    places = indices[:, :, None, None].expand(len(states), -1, 1, states.shape[3])
    return states.gather(2, places).squeeze(2)


def first_states(states: Tensor, batch: Batch) -> Tensor:
    """The states that scores are computed from.

    Args:
        states: (T or 1, batch, pieces, dim).
        batch: the batch they belong to.

    Returns:
        (T or 1, batch, words, dim), each word's first piece, for sequence labelling; otherwise (T or 1, batch, dim),
        the first piece ([CLS]).
    """
    if batch.word_starts is None:
        return states[:, :, 0].contiguous()  # a product's last bits may depend on the memory layout of its factors
    starts = lanes_of(batch.word_starts, batch.lanes)[:, :, :, None]
    return states.gather(2, starts.expand(len(states), -1, -1, states.shape[3]))


class Affine(Layer):
    """A linear layer with a bias, for every member.

    Args:
        inputs: size of a state.
        outputs: size of a result.
        bundle: the members.
        nonlinearity: the function that follows the layer; Kaiming's initial weights (He et al. 2015) depend on it.
        std: standard deviation of the initial weights, instead of Kaiming's.
        bias: initial value of the biases.
    """

    def __init__(
        self, inputs: int, outputs: int, bundle: Bundle, nonlinearity: Literal["linear", "relu", "tanh"] = "linear",
        std: float | None = None, bias: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        spread = nn.init.calculate_gain(nonlinearity) * inputs**-0.5 if std is None else std
        self.weight = bundle.parameter(outputs, inputs, fill=normal(spread))
        self.bias = bundle.parameter(outputs, fill=lambda own, _: nn.init.constant_(own, bias))

    def forward(self, states: Tensor) -> Tensor:
        """(T or 1, …, inputs) → (T, …, outputs)."""
        trials, outputs = self.bias.shape
        rows = states.flatten(1, -2).expand(trials, -1, -1)
        count = rows.shape[1]
        if count == 1:  # with one row, a product's rounding depends on the number of members; with two it does not
            rows = rows.expand(-1, 2, -1)
        if states.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
            found: Tensor = _ByMembers.apply(self.bias, self.weight, rows, torch.get_autocast_dtype("cpu"))  # type: ignore[no-untyped-call]
        else:
            # The weights come first, so that their gradient has their layout; otherwise autograd would copy it.
            found = torch.baddbmm(self.bias[:, :, None], self.weight, rows.transpose(1, 2)).transpose(1, 2).contiguous()
        return found[:, :count].reshape(trials, *states.shape[1:-1], outputs)


class _ByMembers(torch.autograd.Function):
    """An affine layer in bf16, one member at a time and as plain matrices.

    On a CPU, the rounding of a batched bf16 product depends on the number of members, and for a batch of one on the
    stride of the bundle that it was cut from. The backward pass is written by hand, because autograd would convert each
    member's gradients and then copy all of them into one tensor.
    """

    @staticmethod
    def forward(ctx: Any, bias: Tensor, weight: Tensor, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """(T, outputs), (T, outputs, inputs), (T, rows, inputs) → (T, rows, outputs) of autocast's type."""
        lowered = [own.to(dtype) for own in weight]
        found = rows.new_empty(len(weight), rows.shape[1], weight.shape[1], dtype=dtype)
        for result, own, by, read in zip(found, bias.to(dtype), lowered, rows, strict=True):
            torch.addmm(own, read.to(dtype), by.t(), out=result)
        ctx.save_for_backward(rows, *lowered)
        ctx.exact = weight.dtype
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """(T, rows, outputs) → the gradients of `forward`'s arguments, in their types."""
        rows, *lowered = ctx.saved_tensors
        by_weight = torch.empty(len(rows), *lowered[0].shape, dtype=ctx.exact)
        by_bias = torch.empty(by_weight.shape[:2], dtype=ctx.exact)
        by_rows = torch.empty_like(rows, memory_format=torch.contiguous_format) if ctx.needs_input_grad[2] else None
        for member, own in enumerate(gradient.contiguous()):
            by_weight[member] = own.t() @ rows[member].to(own.dtype)
            by_bias[member] = own.sum(0)
            if by_rows is not None:
                by_rows[member] = own @ lowered[member]
        return by_bias, by_weight, by_rows, None


class NarrowNorm(nn.LayerNorm):
    """A layer norm whose result has autocast's type; its statistics are in float32 (Portes et al. 2023, MosaicBERT).

    Under autocast, torch's own returns float32, so each layer copies its states to float32 and back, and adds them
    there. Without that, BERT-base trained 18 % more sentences a second on an H200 (docs/internals/log.md).
    """

    def forward(self, states: Tensor) -> Tensor:
        """(…, dim) → (…, dim)."""
        device = states.device.type
        if not torch.is_autocast_enabled(device):
            return super().forward(states)
        kind = torch.get_autocast_dtype(device)
        bias = None if self.bias is None else self.bias.to(kind)
        with torch.autocast(device, enabled=False):
            return functional.layer_norm(states.to(kind), self.normalized_shape, self.weight.to(kind), bias, self.eps)


def narrow_norms(module: nn.Module) -> None:
    """Give the results of a module's layer norms autocast's type."""
    for part in module.modules():
        if type(part) is nn.LayerNorm:
            part.__class__ = NarrowNorm


class FeatureDropout(Layer):
    """Dropout of whole features, the same ones at every position of a row (Gal & Ghahramani 2016, for recurrences).

    Args:
        bundle: the members, each with its own `dropout`.
    """

    def __init__(self, bundle: Bundle) -> None:
        super().__init__()
        self.dropout = bundle.dropout()

    def forward(self, states: Tensor) -> Tensor:
        """(T or 1, positions, batch, size) → (T, positions, batch, size); unchanged if nothing is to be dropped."""
        ones = states.new_ones(1, 1, *states.shape[2:])
        kept = self.dropout(ones)
        return states if kept is ones else states * kept


class Scores(Layer):
    """dropout → linear, in float32 even under autocast: bf16 has 8 bits, too few to tell regressed scores apart.

    Args:
        inputs: size of a state.
        outputs: size of the scores.
        bundle: the members, each with its own `dropout`.
        std: standard deviation of the initial weights, instead of Kaiming's (He et al. 2015).
    """

    def __init__(self, inputs: int, outputs: int, bundle: Bundle, std: float | None = None) -> None:
        super().__init__()
        self.dropout = bundle.dropout()
        self.linear = Affine(inputs, outputs, bundle, std=std)

    def forward(self, states: Tensor) -> Tensor:
        """(T or 1, …, inputs) of any float type → (T, …, outputs) float32."""
        with torch.autocast(states.device.type, enabled=False):
            return self.linear(self.dropout(states.float()))


def elementwise(function: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
    """Apply a function such as sigmoid or tanh elementwise, (T, …) → (T, …), with the bits that each member has alone.

    A CPU computes whole vectors of numbers with one routine and the remainder at the end with another, which rounds
    differently: in a whole bundle, a member's last numbers would not be the remainder. Sums and products are safe.
    """
    return torch.cat([function(own) for (own,) in shares(states)])


def exact(states: Tensor) -> Tensor:
    """A contiguous copy in float32 or better, because a product's last bits may depend on its factors' layout."""
    wanted = torch.promote_types(states.dtype, torch.float32)
    return states.to(wanted, memory_format=torch.contiguous_format, copy=True)


def pool(states: Tensor, batch: Batch) -> Tensor:
    """Maximum ⊕ mean over real pieces: (T, batch, pieces, dim) of any float type → (T, batch, 2 * dim) float32."""
    return pool_masked(states, lanes_of(batch.piece_mask, batch.lanes))


def pool_masked(states: Tensor, mask: Tensor) -> Tensor:
    """Maximum ⊕ mean where a mask is True, which must be somewhere in every row; shapes as for `pool`.

    Args:
        states: (T or 1, batch, positions, dim).
        mask: (lanes, batch, positions) bool.
    """
    return pool_rows(_highest_and_mean, states, mask)


def _highest_and_mean(states: Tensor, mask: Tensor) -> Tensor:
    return torch.cat([highest(states, mask), mean(states, mask)], -1)


class Maxout(nn.Module):
    """h_i = max_j (x · w_ij + b_ij), as in AllenNLP's Maxout: neighbouring linear units compete.

    Args:
        inputs: size of a vector.
        outputs: number of units.
        competitors: number of linear units per output; the largest wins.
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
