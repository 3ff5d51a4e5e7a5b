"""Batches without their padding: every piece in its row, and back in its place; attention within each row."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from meltpoint.adapters.data.batch import Unpadded, is_worthwhile, places_of, rounded
from meltpoint.adapters.families.huggingface.architecture import attend_first, attend_unpadded


def unpadded_of(lengths: list[int]) -> Unpadded:
    return Unpadded(*places_of(np.array(lengths)))


@given(st.lists(st.integers(1, 70), min_size=1, max_size=9))
def test_what_is_padded_and_unpadded_again_is_what_it_was(lengths: list[int]):
    unpadded, real = unpadded_of(lengths), sum(lengths)
    states = torch.randn(rounded(real), 2)
    rows = unpadded.pad(states)
    assert rows.shape == (len(lengths), max(lengths), 2)
    again = unpadded.unpad(rows)
    assert again.shape == states.shape
    assert torch.equal(unpadded.picked(states).view_as(rows), rows), "the same on a GPU"
    assert torch.equal(again[:real], states[:real])
    assert (again[real:] == states[0]).all(), "what stands for nothing is the first piece again"
    mask = unpadded.key_mask()[:, 0, 0]
    assert mask.sum(1).tolist() == lengths, "each row lies in its own place, whatever the order of the pieces"
    assert not rows[~mask].any()


@given(st.lists(st.integers(1, 70), min_size=1, max_size=9))
def test_positions_count_from_the_start_of_each_row(lengths: list[int]):
    expected = [place for length in sorted(lengths) for place in range(length)]
    (found,) = unpadded_of(lengths).positions().tolist()
    assert found[: sum(lengths)] == expected
    assert not any(found[sum(lengths) :])


@given(st.integers(1, 100_000))
def test_few_counts_of_pieces_recur_and_at_most_a_sixteenth_is_for_nothing(pieces: int):
    assert pieces <= rounded(pieces) <= pieces * 17 / 16
    assert rounded(rounded(pieces)) == rounded(pieces)
    octave = {rounded(count) for count in range(1 << 9, 1 << 10)}
    assert len(octave) == 17


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9), st.integers(0, 2**16))
def test_gradients_that_are_picked_are_those_that_torch_scatters(lengths: list[int], seed: int):
    torch.manual_seed(seed)
    unpadded, real = unpadded_of(lengths), sum(lengths)
    states = torch.randn(rounded(real), 3, dtype=torch.float64, requires_grad=True)
    weigh = torch.randn(len(lengths), max(lengths), 3, dtype=torch.float64)
    (found,) = torch.autograd.grad((unpadded.pad(states) * weigh).sum(), states)
    plain = states.new_zeros(len(lengths) * max(lengths), 3).index_copy(0, unpadded.places, states[:real])
    (expected,) = torch.autograd.grad((plain.view_as(weigh) * weigh).sum(), states)
    assert torch.equal(found, expected)

    rows = torch.randn(len(lengths), max(lengths), 3, dtype=torch.float64, requires_grad=True)
    weigh = torch.randn(rounded(real), 3, dtype=torch.float64)
    weigh[real:] = 0  # nothing reads the copies that fill up
    (found,) = torch.autograd.grad((unpadded.unpad(rows) * weigh).sum(), rows)
    (expected,) = torch.autograd.grad((rows.flatten(0, 1)[unpadded.places] * weigh[:real]).sum(), rows)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("rows", "length", "without"), [(32, 128, False), (64, 128, False), (65, 128, True)])
def test_a_gpu_keeps_the_padding_of_a_small_batch_and_a_cpu_never(rows: int, length: int, without: bool):
    assert is_worthwhile(torch.zeros(rows, length))
    assert is_worthwhile(SimpleNamespace(is_cuda=True, numel=lambda: rows * length)) is without


# --- attention ---

LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=20)
NEARLY_NONE = 1e-12
"""A dropout that drops nothing, but takes the way of one that does."""


def queries_keys_values(count: int) -> list[Tensor]:
    """Of so many pieces, one after another: (rounded pieces, heads, dim)."""
    torch.manual_seed(count)
    return [torch.randn(rounded(count), 3, 8, requires_grad=True) for _ in range(3)]


def row_by_row(query: Tensor, key: Tensor, value: Tensor, lengths: list[int], window: int = 1000) -> Tensor:
    """Attention of each row alone, the shortest first, at a scale of 0.3, to pieces nearer than a window."""
    found, start = [], 0
    for length in sorted(lengths):
        own = [states[start : start + length].transpose(0, 1) for states in (query, key, value)]
        near = (torch.arange(length)[:, None] - torch.arange(length)).abs() < window
        attended = functional.scaled_dot_product_attention(own[0], own[1], own[2], attn_mask=near, scale=0.3)
        found.append(attended.transpose(0, 1))
        start += length
    return torch.cat(found)


def assert_same(found: Tensor, expected: Tensor, made: list[Tensor]) -> None:
    """The same numbers, and the same gradients of a sum that tells them apart."""
    weight = torch.linspace(-1, 1, expected.numel()).view_as(expected)
    gradients = [torch.autograd.grad((own * weight).sum(), made, retain_graph=True) for own in (found, expected)]
    for one, other in [(found, expected), *zip(*gradients, strict=True)]:
        torch.testing.assert_close(one, other, atol=2e-5, rtol=2e-5)


@given(LENGTHS, st.none() | st.integers(1, 80), st.sampled_from([0.0, NEARLY_NONE]))
def test_a_row_attends_to_itself_alone_and_within_a_window(lengths: list[int], window: int | None, dropout: float):
    made = queries_keys_values(sum(lengths))
    found = attend_unpadded(*made, unpadded_of(lengths), 0.3, dropout, window)
    assert_same(found[: sum(lengths)], row_by_row(*made, lengths, window or 1000), made)


@given(LENGTHS)
def test_one_query_a_row_is_its_first_piece(lengths: list[int]):
    made, unpadded = queries_keys_values(sum(lengths)), unpadded_of(lengths)
    first = unpadded.first
    assert unpadded.places[first].tolist() == [row * max(lengths) for row in range(len(lengths))]
    found = attend_first(made[0][first], made[1], made[2], unpadded, 0.3, 0.0)
    assert_same(found, row_by_row(*made, lengths)[first], made)


def test_attentions_dropout_acts_and_keeps_the_mean():
    torch.manual_seed(0)
    unpadded, ones = unpadded_of([32] * 22), torch.ones(3, 704, 99, 1)
    all_queries = attend_unpadded(*ones, unpadded, 1.0, 0.3)
    first_queries = attend_first(ones[0, :22], ones[1], ones[2], unpadded, 1.0, 0.3)
    for found in (all_queries, first_queries):
        assert float(found.std()) > 0.05
        assert float(found.mean()) == pytest.approx(1.0, abs=0.02)
