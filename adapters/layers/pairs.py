"""The two sentences of a pair: extract them from a row, align them softly, and compare them as vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from meltpoint.adapters.data.batch import Batch, mapped
from meltpoint.adapters.layers.affine import exact
from meltpoint.adapters.layers.bundle import lanes_of, shares


class Sentence(NamedTuple):
    """One of the two sentences of every pair in a batch.

    Attributes:
        states: (T or 1, batch, longest, dim), 0 where masked.
        mask: (lanes, batch, longest) bool, True on the sentence's own tokens. An empty sentence has one zero state with
            a mask of True, so that no softmax, mean or maximum is empty.
    """

    states: Tensor
    mask: Tensor


def sentences(states: Tensor, batch: Batch) -> tuple[Sentence, Sentence]:
    """The first and the second sentences of all pairs, each padded to the longest on its side.

    On a GPU, this waits once for the device, to read the two longest lengths.

    Args:
        states: (T or 1, batch, pieces, dim).
        batch: pairs; `parts` gives each piece's sentence, and a sentence's pieces are contiguous.
    """
    assert batch.parts is not None, "a batch of pairs has `parts`"
    parts = lanes_of(batch.parts, batch.lanes)
    inside = torch.stack([parts == 1, parts == 2])  # (2, lanes, batch, pieces)
    lengths = inside.sum(-1)
    first, second = lengths.amax((1, 2)).clamp(min=1).tolist()
    return _sentence(states, inside[0], lengths[0], first), _sentence(states, inside[1], lengths[1], second)


def _sentence(states: Tensor, inside: Tensor, lengths: Tensor, longest: int) -> Sentence:
    """One sentence of every pair, from the mask of its tokens: (lanes, batch, pieces)."""
    bundles, rows, pieces, dim = states.shape
    device = states.device
    start = inside.int().argmax(-1, keepdim=True)  # the first piece inside; (lanes, batch, 1)
    row = torch.arange(bundles * rows, device=device).view(bundles, rows, 1)
    index = torch.arange(longest, device=device)
    there = (start + index).clamp(max=pieces - 1) + row * pieces  # (bundles, batch, longest)
    back = (torch.arange(pieces, device=device) - start).clamp(0, longest - 1) + row * longest
    own = index < lengths[..., None]
    is_real, has_gone = (part.expand(bundles, -1, -1).reshape(-1, 1) for part in (own, inside))
    picked = mapped(
        states.reshape(-1, dim),
        lambda rows: rows.index_select(0, there.flatten()).mul_(is_real),
        lambda gradient: gradient.index_select(0, back.flatten()).mul_(has_gone),
    )
    return Sentence(picked.view(bundles, rows, longest, dim), index < lengths[..., None].clamp(min=1))


def on_both(read: Callable[[Sentence], Tensor], one: Sentence, two: Sentence) -> tuple[Tensor, Tensor]:
    """Apply `read` to each sentence; the results may have extra positions at the end.

    A GPU reads both at once, as rows of one batch, because a recurrence's time depends on its steps. A CPU reads one
    after the other, because the shorter sentence needs fewer steps.
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


def enhance(one: Sentence, two: Sentence) -> tuple[Sentence, Sentence]:
    """Each state with its alignment in the other sentence, their difference, and their product.

    Chen et al. 2017, section 3.2, equations 11 to 15. Computed in float32 even under autocast: the alignment's scores
    are products over a whole state and may be in the hundreds, where bf16 has only whole numbers.

    Returns:
        Both sentences with states of (T or 1, batch, longest, 4 * dim): [a; ã; a − ã; a ∗ ã]. Padding is aligned with
        nothing, and its states have no meaning.
    """
    with torch.autocast(one.states.device.type, enabled=False):
        found = [_enhanced(*share) for share in shares(*_by_member(one, two))]
    first, second = (torch.cat(states) for states in zip(*found, strict=True))
    return Sentence(first, one.mask), Sentence(second, two.mask)


def _by_member(one: Sentence, two: Sentence) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States and masks, one for every member that has its own states."""
    bundles = len(one.states)
    return one.states, two.states, one.mask.expand(bundles, -1, -1), two.mask.expand(bundles, -1, -1)


def _enhanced(one: Tensor, two: Tensor, one_mask: Tensor, two_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Some members' enhanced states, from (members, batch, longest, dim) and (members, batch, longest)."""
    one, two = exact(one), exact(two)
    scores = one @ two.transpose(2, 3)  # eq. 11: (members, batch, longest of one, longest of two)
    aligned_one = _softmax(scores, two_mask) @ two  # eq. 12
    aligned_two = _softmax(scores.transpose(2, 3), one_mask) @ one  # eq. 13
    return _enhancement(one, aligned_one), _enhancement(two, aligned_two)


def _softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax weights over the last dimension where a (members, batch, positions) mask is True."""
    return scores.masked_fill(~mask[:, :, None], float("-inf")).softmax(-1)


def _enhancement(states: Tensor, aligned: Tensor) -> Tensor:
    """[a; ã; a − ã; a ∗ ã], equations 14 and 15."""
    return torch.cat([states, aligned, states - aligned, states * aligned], -1)


KIROS, GLUE = "kiros", "glue"
PARTS = {KIROS: 2, GLUE: 4}
"""The size of a pair's features, in vectors."""


def compared(first: Tensor, second: Tensor, pair: str) -> Tensor:
    """(T or 1, batch, dim), twice → (T or 1, batch, 2 or 4 · dim).

    Args:
        pair: [|u − v|; u ∗ v] (`kiros`: Kiros et al. 2015, section 3.2), or u and v before it (`glue`: Wang et al.
            2018, section 4).
    """
    own = [first, second] if pair == GLUE else []
    return torch.cat([*own, (first - second).abs(), first * second], -1)
