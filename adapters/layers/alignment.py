"""Soft alignment of a pair's sentences, and the enhancement of their states, as in ESIM (Chen et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor

from meltpoint.adapters.layers.affine import exact
from meltpoint.adapters.layers.bundle import shares
from meltpoint.adapters.layers.sentence_pair import Sentence


def enhance(one: Sentence, two: Sentence) -> tuple[Sentence, Sentence]:
    """Each state beside what it is aligned with in the other sentence, their difference, and their product.

    Chen et al. 2017, section 3.2, equations 11 to 15. In float32, also under autocast: the alignment's scores are
    products over all of a state, and may be in the hundreds, where bf16 knows whole numbers only.

    Returns:
        Both sentences with states of (T or 1, batch, longest, 4 * dim): [a; ã; a − ã; a ∗ ã]. Padding is aligned with
        nothing, and has states that mean nothing.
    """
    with torch.autocast(one.states.device.type, enabled=False):
        found = [_enhanced(*share) for share in shares(*_by_member(one, two))]
    first, second = (torch.cat(states) for states in zip(*found, strict=True))
    return Sentence(first, one.mask), Sentence(second, two.mask)


def _by_member(one: Sentence, two: Sentence) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """States and masks, one for every member that has states of its own."""
    bundles = len(one.states)
    return one.states, two.states, one.mask.expand(bundles, -1, -1), two.mask.expand(bundles, -1, -1)


def _enhanced(one: Tensor, two: Tensor, one_mask: Tensor, two_mask: Tensor) -> tuple[Tensor, Tensor]:
    """Some members' enhanced states, from (members, batch, longest, dim) and (members, batch, longest)."""
    one, two = exact(one), exact(two)
    scores = one @ two.transpose(2, 3)  # eq. 11: (members, batch, longest of one, longest of two)
    aligned_one = _softmax(scores, two_mask) @ two  # eq. 12
    aligned_two = _softmax(scores.transpose(2, 3), one_mask) @ one  # eq. 13
    return _beside(one, aligned_one), _beside(two, aligned_two)


def _softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Weights over the last dimension, of what a (members, batch, positions) mask leaves."""
    return scores.masked_fill(~mask[:, :, None], float("-inf")).softmax(-1)


def _beside(states: Tensor, aligned: Tensor) -> Tensor:
    """Equations 14 and 15."""
    return torch.cat([states, aligned, states - aligned, states * aligned], -1)
