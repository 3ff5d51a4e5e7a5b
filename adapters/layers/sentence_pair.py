"""The two sentences of a pair, each as a padded tensor without special tokens, encoded jointly or separately."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.layers.bundle import lanes_of


class Sentence(NamedTuple):
    """One of the two sentences of every pair in a batch.

    Attributes:
        states: (T or 1, batch, longest, dim), 0 where masked.
        mask: (lanes, batch, longest) bool, True on the sentence's own tokens. An empty sentence has one state of zeros,
            with a mask of True, so that no softmax, mean or maximum is over nothing.
    """

    states: Tensor
    mask: Tensor


def sentences(states: Tensor, batch: Batch) -> tuple[Sentence, Sentence]:
    """The first and the second sentence of every pair, each padded to the longest of its own.

    Where the batch lies on a GPU, this waits for it once: for the two longest lengths.

    Args:
        states: (T or 1, batch, pieces, dim).
        batch: pairs; `parts` says whose each piece is, and a sentence's pieces are a stretch.
    """
    assert batch.parts is not None, "pairs know their sentences"
    assert batch.parts.shape[-1] == states.shape[2], "one part a state"
    parts = lanes_of(batch.parts, batch.lanes)
    inside = torch.stack([parts == 1, parts == 2])  # (2, lanes, batch, pieces)
    lengths = inside.sum(-1)
    first, second = lengths.amax((1, 2)).clamp(min=1).tolist()
    return _sentence(states, inside[0], lengths[0], first), _sentence(states, inside[1], lengths[1], second)


def _sentence(states: Tensor, inside: Tensor, lengths: Tensor, longest: int) -> Sentence:
    """One sentence of every pair, from the mask of its tokens: (lanes, batch, pieces)."""
    bundles, rows, pieces, dim = states.shape
    device = states.device
    start = inside.int().argmax(-1, keepdim=True)  # the first one inside; (lanes, batch, 1)
    row = torch.arange(bundles * rows, device=device).view(bundles, rows, 1)
    place = torch.arange(longest, device=device)
    there = (start + place).clamp(max=pieces - 1) + row * pieces  # (bundles, batch, longest)
    back = (torch.arange(pieces, device=device) - start).clamp(0, longest - 1) + row * longest
    own = place < lengths[..., None]
    picked: Tensor = _Picked.apply(  # type: ignore[no-untyped-call]
        states.reshape(-1, dim), there.flatten(), own.expand(bundles, -1, -1).reshape(-1, 1),
        back.flatten(), inside.expand(bundles, -1, -1).reshape(-1, 1),
    )  # fmt: skip
    return Sentence(picked.view(bundles, rows, longest, dim), place < lengths[..., None].clamp(min=1))


def on_both(read: Callable[[Sentence], Tensor], one: Sentence, two: Sentence) -> tuple[Tensor, Tensor]:
    """`read` of each sentence; positions beyond a sentence's own longest may have been added.

    On a GPU at once, as rows of one batch: a recurrence takes as long as it has steps there. On a CPU one after the
    other: the shorter sentence is spared the longer one's steps.
    """
    if not one.states.is_cuda:
        return read(one), read(two)
    rows = one.states.shape[1]
    found = read(side_by_side(one, two))
    return found[:, :rows], found[:, rows:]


def side_by_side(one: Sentence, two: Sentence) -> Sentence:
    """Two sentences as rows of one batch: (T or 1, 2 * batch, longest of both, dim)."""
    longest = max(one.states.shape[2], two.states.shape[2])
    states = [functional.pad(own.states, (0, 0, 0, longest - own.states.shape[2])) for own in (one, two)]
    masks = [functional.pad(own.mask, (0, longest - own.mask.shape[2])) for own in (one, two)]
    return Sentence(torch.cat(states, 1), torch.cat(masks, 1))


class _Picked(torch.autograd.Function):
    """Some rows, each at most once; the backward pass picks rows too, where `gather`'s scatters single elements."""

    @staticmethod
    def forward(ctx: FunctionCtx, rows: Tensor, there: Tensor, own: Tensor, back: Tensor, inside: Tensor) -> Tensor:
        """(N, size) → (M, size).

        Args:
            ctx: autograd's.
            rows: what is picked from.
            there: (M,), which row each one is.
            own: (M, 1) bool; the others are 0.
            back: (N,), where each row went.
            inside: (N, 1) bool, whether it went anywhere.
        """
        ctx.save_for_backward(back, inside)
        return rows.index_select(0, there).mul_(own)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Each row's gradient is that of the place where it went."""
        back, inside = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradient.index_select(0, back).mul_(inside), None, None, None, None
