"""Weighted cosines of states, cosine(W_k ∘ v, W_k ∘ u): of states in pairs, and the best over all pairs of positions.

Both come from products that W enters squared, Σ_d W²_kd v_d u_d, and the roots of Σ_d W²_kd v²_d and Σ_d W²_kd u²_d, so
that no state is copied for each perspective. The backward pass computes intermediate results again; only the states
and, for the best cosines, the indices of the winning pairs are saved. G counts the sets of weights.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

_NOTHING = 1e-12
"""A squared norm of no more is that of a zero vector, whose cosines are 0, and their gradients too."""


def inverse_root(squared_norms: Tensor) -> Tensor:
    """1 over the root; 0 for a vector of zeros."""
    nothing = squared_norms <= _NOTHING
    return squared_norms.masked_fill(nothing, 1.0).rsqrt().masked_fill(nothing, 0.0)


def products(one: Tensor, two: Tensor, squared: Tensor) -> Tensor:
    """Σ_d W²_kd v_d u_d of states in pairs.

    Args:
        one, two: (G, batch, longest, size); the second's longest may be 1.
        squared: (G, l, size).

    Returns:
        (G, batch, longest, l).
    """
    return _Products.apply(one, two, squared)  # type: ignore[no-any-return, no-untyped-call]


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, one: Tensor, two: Tensor, squared: Tensor) -> Tensor:
        ctx.save_for_backward(one, two, squared)
        found = torch.bmm((one * two).flatten(1, 2), squared.transpose(1, 2))
        return found.view(*one.shape[:3], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        one, two, squared = ctx.saved_tensors  # type: ignore[attr-defined]
        flat = gradient.flatten(1, 2)
        through = torch.bmm(flat, squared).view(one.shape)
        for_two = (through * one).sum_to_size(two.shape)
        for_squared = torch.bmm(flat.transpose(1, 2), (one * two).flatten(1, 2))
        return through.mul_(two), for_two, for_squared


def best_cosines(
    one: Tensor, two: Tensor, squared: Tensor, one_root: Tensor, two_root: Tensor, both: Tensor
) -> tuple[Tensor, Tensor]:
    """Each position's best cosine with any real position of the other sentence, under each perspective.

    Args:
        one, two: states, (G, batch, p, size) and (G, batch, q, size).
        squared: (G, l, size), the perspectives' squared weights.
        one_root, two_root: (G, batch, p, l) and (G, batch, q, l), 1 over each state's norm under each perspective.
        both: (G, batch, p, q) bool, where both positions are real.

    Returns:
        (G, batch, p, l) and (G, batch, q, l); 0 where masked and where the other sentence has no position.
    """
    roots = [root.permute(3, 0, 1, 2).flatten(1, 2).contiguous() for root in (one_root, two_root)]
    first, second = _Best.apply(one, two, squared, *roots, both.flatten(0, 1))  # type: ignore[no-untyped-call]
    return (
        first.view(-1, *one.shape[:3]).permute(1, 2, 3, 0),
        second.view(-1, *two.shape[:3]).permute(1, 2, 3, 0),
    )


class _Best(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, one: Tensor, two: Tensor, squared: Tensor, one_root: Tensor, two_root: Tensor, both: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The best of each row and column.

        Args:
            ctx: autograd's.
            one, two: (G, batch, p, size) and (G, batch, q, size).
            squared: (G, l, size).
            one_root, two_root: (l, G · batch, p) and (l, G · batch, q), 1 over each state's norm.
            both: (G · batch, p, q) bool, where both positions are real.

        Returns:
            (l, G · batch, p) and (l, G · batch, q).
        """
        cosines = one.new_empty(len(one_root), *both.shape)
        back = two.flatten(0, 1).transpose(1, 2)
        for own, weight in zip(cosines, squared.unbind(1), strict=True):
            torch.bmm((one * weight[:, None, None]).flatten(0, 1), back, out=own)
        cosines.mul_(one_root[..., None]).mul_(two_root[:, :, None]).masked_fill_(~both, float("-inf"))
        (best_one, at_one), (best_two, at_two) = cosines.max(-1), cosines.max(-2)
        best_one, best_two = best_one.masked_fill(~both.any(-1), 0.0), best_two.masked_fill(~both.any(-2), 0.0)
        ctx.save_for_backward(one, two, squared, one_root, two_root, both, best_one, best_two, at_one, at_two)
        return best_one, best_two

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, for_one: Tensor, for_two: Tensor) -> tuple[Tensor | None, ...]:
        """Through the pairs that won."""
        saved: tuple[Tensor, ...] = ctx.saved_tensors  # type: ignore[attr-defined]
        one, two, squared, one_root, two_root, both, best_one, best_two, at_one, at_two = saved
        for_one, for_two = for_one * both.any(-1), for_two * both.any(-2)
        dots = _won(for_one, for_two, at_one, at_two).mul_(one_root[..., None]).mul_(two_root[:, :, None])
        # A cosine is linear in either root: the root's gradient is the cosine's times the cosine, over the root.
        roots = _won(for_one * best_one, for_two * best_two, at_one, at_two)
        for_roots = [_over(roots.sum(-1), one_root), _over(roots.sum(-2), two_root)]
        return *_through_products(dots, one, two, squared), *for_roots, None


def _won(for_one: Tensor, for_two: Tensor, at_one: Tensor, at_two: Tensor) -> Tensor:
    """Gradients laid where their pairs are: (l, N, p), (l, N, q) and the winners' places → (l, N, p, q)."""
    found = for_one.new_zeros(*for_one.shape, for_two.shape[-1])
    found.scatter_(-1, at_one[..., None], for_one[..., None])
    return found.scatter_add_(-2, at_two[:, :, None], for_two[:, :, None])


def _over(numbers: Tensor, root: Tensor) -> Tensor:
    """0 where the root is 0: that of a vector of zeros, or of padding."""
    return (numbers / root).masked_fill(root == 0, 0.0)


def _through_products(dots: Tensor, one: Tensor, two: Tensor, squared: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From the gradient of every product, (l, G · batch, p, q), to those of states and squared weights."""
    for_one, for_two, for_squared = torch.zeros_like(one), torch.zeros_like(two), torch.empty_like(squared)
    flat = two.flatten(0, 1)
    for number, own in enumerate(dots):
        weight = squared[:, number, None, None]
        reached = torch.bmm(own, flat).view(one.shape)
        for_one.addcmul_(reached, weight)
        for_squared[:, number] = reached.mul_(one).sum((1, 2))
        for_two.view(flat.shape).baddbmm_(own.transpose(1, 2), (one * weight).flatten(0, 1))
    return for_one, for_two, for_squared
