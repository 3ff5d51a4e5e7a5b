"""ELMo's recurrence written by hand: its gradients against numbers, with clips that act and rows of several lengths."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from meltpoint.adapters.families.elmo.language_model import Clips, ProjectedLSTM, Start, UniqueIndexSelect, rows_at

SIZES = {"groups": 2, "steps": 5, "batch": 3, "size": 2, "cells": 3}
LENGTHS = [5, 3, 2]


def drawn(*shape: int, scale: float = 1.0) -> Tensor:
    return (scale * torch.randn(*shape, dtype=torch.float64)).requires_grad_()


def weights(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(seed)
    groups, steps, batch, size, cells = SIZES.values()
    return (
        drawn(groups, steps, batch, size), drawn(groups, 2 * size, 4 * cells), drawn(groups, 4 * cells),
        drawn(groups, cells, size),
    )  # fmt: skip


def start(seed: int) -> Start:
    torch.manual_seed(seed)
    groups, _, batch, size, cells = SIZES.values()
    return Start(drawn(groups, batch, size).detach(), drawn(groups, batch, cells).detach())


@pytest.mark.parametrize("clips", [Clips(), Clips(0.35, 0.3), Clips(output=0.3), Clips(memory=0.35)])
@pytest.mark.parametrize("begins", [True, False])
def test_gradients_are_those_of_finite_differences(clips: Clips, begins: bool):
    given, first = weights(0), start(1) if begins else None

    def run(*parts: Tensor) -> Tensor:
        read: Tensor = ProjectedLSTM.apply(*parts, first, LENGTHS, clips, True)[0]
        return read

    assert bool((run(*given).abs() >= clips.output).any()) == (clips.output < 1)
    assert torch.autograd.gradcheck(run, given)


@pytest.mark.parametrize("trained", [*itertools.product([True, False], repeat=2)])
def test_frozen_weights_get_no_gradient_and_change_no_other(trained: tuple[bool, bool]):
    every, some = weights(0), weights(0)
    for part, opened in zip(some, (trained[0], trained[1], trained[1], trained[1]), strict=True):
        part.requires_grad_(opened)
    for parts in (every, some):
        read = ProjectedLSTM.apply(*parts, None, LENGTHS, Clips(1.0, 1.0), any(part.requires_grad for part in parts))[0]
        if read.requires_grad:
            read.pow(2).sum().backward()
    for one, two in zip(every, some, strict=True):
        assert two.grad is None if not two.requires_grad else torch.equal(one.grad, two.grad)


def test_without_gradients_it_gives_the_same_and_keeps_less():
    parts = weights(2)
    kept = ProjectedLSTM.apply(*parts, start(3), LENGTHS, Clips(0.5, 0.5), True)
    with torch.no_grad():
        light = ProjectedLSTM.apply(*parts, start(3), LENGTHS, Clips(0.5, 0.5), False)
    assert all(torch.equal(one, two) for one, two in zip(kept, light, strict=True))


def test_a_row_in_two_halves_is_the_row_in_one():
    inputs, *own = (part.detach() for part in weights(4))
    groups, _, batch, _, _ = SIZES.values()
    whole, *ends = ProjectedLSTM.apply(inputs, *own, None, [5] * batch, Clips(0.5, 0.5), False)
    one, *middle = ProjectedLSTM.apply(inputs[:, :2].contiguous(), *own, None, [2] * batch, Clips(0.5, 0.5), False)
    tail = inputs[:, 2:].contiguous()
    two, *last = ProjectedLSTM.apply(tail, *own, Start(*middle), [3] * batch, Clips(0.5, 0.5), False)
    torch.testing.assert_close(torch.cat([one, two], 1), whole)
    assert groups == len(whole)
    for found, wanted in zip(last, ends, strict=True):
        torch.testing.assert_close(found, wanted)


def test_beyond_its_end_a_row_is_zero_and_its_last_state_stays():
    read, output, _ = ProjectedLSTM.apply(*weights(5), None, LENGTHS, Clips(), False)
    for row, length in enumerate(LENGTHS):
        assert not read[:, length:, row].any()
        assert torch.equal(read[:, length - 1, row], output[:, row])


@pytest.mark.parametrize(("lengths", "wanted"), [([3], [1, 1, 1]), ([4, 2, 2, 1], [4, 3, 1, 1]), ([2, 2], [2, 2])])
def test_rows_that_are_still_read_are_counted_step_by_step(lengths: list[int], wanted: list[int]):
    assert rows_at(lengths) == wanted


def test_picked_rows_have_the_gradient_of_indexing():
    torch.manual_seed(0)
    rows, places = drawn(6, 3), torch.tensor([4, 0, 5])
    assert torch.autograd.gradcheck(lambda given: UniqueIndexSelect.apply(given, places), rows)
    assert torch.equal(UniqueIndexSelect.apply(rows, places), rows[places])
