"""Batches without their padding: every piece in its row, and back in its place."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meltpoint.adapters.data.unpadding import Unpadded, is_worthwhile, places_of, rounded


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


@given(st.lists(st.integers(1, 200), min_size=1, max_size=12))
def test_rows_begin_one_after_another_and_know_their_place_in_the_batch(lengths: list[int]):
    unpadded = unpadded_of(lengths)
    assert np.diff(unpadded.starts).tolist() == sorted(lengths)
    assert [lengths[row] for row in unpadded.order] == sorted(lengths)
    assert sorted(unpadded.order.tolist()) == list(range(len(lengths)))


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
