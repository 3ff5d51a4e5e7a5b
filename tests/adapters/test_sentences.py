"""A pair's two sentences as tensors of their own, against a loop over rows; nothing else ever gets into them."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.layers.attention import sentences

DIM = 3
Layout = tuple[int, int, int, int]
"""Special tokens, pieces of the first sentence, special tokens, pieces of the second."""

layouts = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 4), st.integers(0, 2), st.integers(0, 5)), min_size=1, max_size=4
)


def batch_of(rows: list[Layout], lanes: int = 1, padding: int = 1) -> Batch:
    width = max(map(sum, rows)) + padding
    lines = [[0] * a + [1] * one + [0] * b + [2] * two for a, one, b, two in rows]
    parts = torch.tensor([line + [0] * (width - len(line)) for line in lines])
    return Batch(tuple(range(len(rows))), parts, parts > 0, lanes=lanes, parts=parts)


def loop(states: Tensor, parts: Tensor, number: int) -> list[list[Tensor]]:
    """The states of sentence `number`, (length, dim), of each member and row, by comparing every piece."""
    members = zip(states, parts.expand(len(states), -1, -1), strict=True)
    return [
        [torch.stack([s for s, p in zip(row, own, strict=True) if p == number] or [torch.zeros(DIM)])
         for row, own in zip(*member, strict=True)]
        for member in members
    ]  # fmt: skip


def check(states: Tensor, batch: Batch) -> None:
    parts = batch.parts.view(batch.lanes, -1, batch.parts.shape[1])
    for number, (found, mask) in enumerate(sentences(states, batch), 1):
        expected = loop(states, parts, number)
        assert found.shape[2] == mask.shape[2] == max(len(row) for member in expected for row in member)
        assert mask.shape[:2] == parts.shape[:2]
        for member, rows in enumerate(expected):
            for row, own in enumerate(rows):
                assert torch.equal(found[member, row, : len(own)], own)
                assert not found[member, row, len(own) :].any()
                assert mask[member % batch.lanes, row].tolist() == [i < len(own) for i in range(mask.shape[2])]


@given(layouts, st.sampled_from([(1, 1), (3, 1)]))
def test_each_sentence_has_just_its_own_states_in_order(rows: list[Layout], stack: tuple[int, int]):
    batch = batch_of(rows, lanes=stack[1])
    check(torch.randn(stack[0], len(rows), batch.parts.shape[1], DIM), batch)


@given(st.tuples(layouts, layouts).map(lambda two: [list(own) for own in zip(*two, strict=False)]))
def test_lanes_have_rows_of_their_own(rows: list[list[Layout]]):
    lanes = [row for lane in zip(*rows, strict=True) for row in lane]
    batch = batch_of(lanes, lanes=2)
    check(torch.randn(2, len(rows), batch.parts.shape[1], DIM), batch)


@pytest.mark.parametrize(("members", "lanes"), [(1, 1), (2, 1), (2, 2)])
def test_the_gradient_is_that_of_finite_differences(members: int, lanes: int):
    batch = batch_of([(1, 2, 1, 3), (1, 0, 2, 1), (0, 3, 0, 2), (1, 1, 1, 1)], lanes)
    shape = (members, 4 // lanes, batch.parts.shape[1], 2)
    states = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda own: tuple(sentence.states for sentence in sentences(own, batch)), states)


def test_rows_that_are_no_pairs_are_refused():
    mask = torch.ones(1, 3, dtype=torch.bool)
    with pytest.raises(AssertionError, match="a batch of pairs has `parts`"):
        sentences(torch.zeros(1, 1, 3, DIM), Batch((0,), mask.long(), mask))
