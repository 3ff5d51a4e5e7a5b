"""Batches without their padding: the same numbers as row by row, in states and in gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from meltpoint.adapters.attention import UNPADDED, attend_unpadded, attention_forward
from meltpoint.adapters.padding_free import Unpadded, padded, places_of

HEADS, DIM = 3, 4


def unpadded_of(lengths: list[int]) -> Unpadded:
    return Unpadded(*places_of(np.array(lengths)))


def pieces_of_rows(count: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(count)
    first, second, third = (torch.randn(count, HEADS, DIM, dtype=dtype, requires_grad=True) for _ in range(3))
    return first, second, third


def row_by_row(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], scale: float) -> Tensor:
    """Attention of each row alone; rows lie one after another, the shortest first."""
    found, start = [], 0
    for length in sorted(lengths):
        own = [states[start : start + length].transpose(0, 1) for states in (query, key, value)]
        found.append(functional.scaled_dot_product_attention(own[0], own[1], own[2], scale=scale).transpose(0, 1))
        start += length
    return torch.cat(found)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=9))
def test_what_is_spread_and_collected_again_is_what_it_was(lengths: list[int]):
    unpadded = unpadded_of(lengths)
    states = torch.randn(sum(lengths), 2)
    rows = unpadded.spread(states)
    assert rows.shape == (len(lengths), max(lengths), 2)
    assert torch.equal(unpadded.collect(rows), states)
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


@given(st.lists(st.integers(1, 70), min_size=1, max_size=6))
def test_a_row_attends_to_itself_alone_in_result_and_gradients(lengths: list[int]):
    made = pieces_of_rows(sum(lengths))
    expected = row_by_row(*made, lengths, 0.3)
    found = attend_unpadded(*made, unpadded_of(lengths), 0.3, 0.0)
    torch.testing.assert_close(found, expected)
    weight = torch.randn_like(expected)
    for one, other in zip(
        torch.autograd.grad((found * weight).sum(), made),
        torch.autograd.grad((expected * weight).sum(), made),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_gradients_under_dropout_are_those_of_finite_differences():
    lengths = [3, 1, 34]

    def seeded(*triple: Tensor) -> Tensor:
        torch.manual_seed(0)
        return attend_unpadded(*triple, unpadded_of(lengths), 0.35, 0.4)

    assert torch.autograd.gradcheck(seeded, pieces_of_rows(sum(lengths)), fast_mode=True)


@pytest.mark.parametrize("lengths", [[150, 3, 40], [150]])
def test_long_rows_take_torchs_kernel_and_say_the_same(lengths: list[int]):
    made = pieces_of_rows(sum(lengths))
    as_given = [states.transpose(0, 1)[None] for states in made]
    more = {UNPADDED: unpadded_of(lengths)}
    found, _ = attention_forward(torch.nn.Module(), *as_given, None, scaling=0.3, **more)
    torch.testing.assert_close(found[0], row_by_row(*made, lengths, 0.3))
