"""Batches without their padding: every piece in its row, and back in its place."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.padding_free import Unpadded, padded, places_of


def unpadded_of(lengths: list[int]) -> Unpadded:
    return Unpadded(*places_of(np.array(lengths)))


@given(st.lists(st.integers(1, 70), min_size=1, max_size=9))
def test_what_is_padded_and_unpadded_again_is_what_it_was(lengths: list[int]):
    unpadded = unpadded_of(lengths)
    states = torch.randn(sum(lengths), 2)
    rows = unpadded.pad(states)
    assert rows.shape == (len(lengths), max(lengths), 2)
    assert torch.equal(unpadded.unpad(rows), states)
    mask = unpadded.key_mask()[:, 0, 0]
    assert mask.sum(1).tolist() == lengths, "each row lies in its own place, whatever the order of the pieces"
    assert not rows[~mask].any()


@given(st.lists(st.integers(1, 70), min_size=1, max_size=9))
def test_positions_count_from_the_start_of_each_row(lengths: list[int]):
    expected = [place for length in sorted(lengths) for place in range(length)]
    assert unpadded_of(lengths).positions().tolist() == [expected]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=12))
def test_groups_hold_every_row_once_and_share_a_width(lengths: list[int]):
    groups = unpadded_of(lengths).groups
    assert [length for group in groups for length in group.lengths.tolist()] == sorted(lengths)
    assert [(group.start, group.end) for group in groups] == [
        (before, before + int(group.lengths.sum()))
        for group, before in zip(groups, np.cumsum([0, *(int(g.lengths.sum()) for g in groups)])[:-1], strict=True)
    ]
    assert len({padded(group.longest) for group in groups}) == len(groups)
