"""ELMo's recurrence written by hand: its gradients against numbers, with clips that act and rows of several lengths."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from meltpoint.adapters.families.elmo.language_model import Clips, ProjectedLSTM, rows_at

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


@pytest.mark.parametrize("clips", [Clips(), Clips(0.35, 0.3), Clips(output=0.3), Clips(memory=0.35)])
def test_gradients_are_those_of_finite_differences(clips: Clips):
    given = weights(0)

    def run(*parts: Tensor) -> Tensor:
        read: Tensor = ProjectedLSTM.apply(*parts, LENGTHS, clips, True)
        return read

    assert bool((run(*given).abs() >= clips.output).any()) == (clips.output < 1)
    assert torch.autograd.gradcheck(run, given)


@pytest.mark.parametrize("trained", [*itertools.product([True, False], repeat=2)])
def test_frozen_weights_get_no_gradient_and_change_no_other(trained: tuple[bool, bool]):
    every, some = weights(0), weights(0)
    for part, opened in zip(some, (trained[0], trained[1], trained[1], trained[1]), strict=True):
        part.requires_grad_(opened)
    for parts in (every, some):
        read = ProjectedLSTM.apply(*parts, LENGTHS, Clips(1.0, 1.0), any(part.requires_grad for part in parts))
        if read.requires_grad:
            read.pow(2).sum().backward()
    for one, two in zip(every, some, strict=True):
        assert two.grad is None if not two.requires_grad else torch.equal(one.grad, two.grad)


def test_without_gradients_it_gives_the_same_and_keeps_less():
    parts = weights(2)
    kept = ProjectedLSTM.apply(*parts, LENGTHS, Clips(0.5, 0.5), True)
    with torch.no_grad():
        light = ProjectedLSTM.apply(*parts, LENGTHS, Clips(0.5, 0.5), False)
    assert torch.equal(kept, light)


def test_beyond_its_end_a_row_is_zero():
    read = ProjectedLSTM.apply(*weights(5), LENGTHS, Clips(), False)
    assert not any(read[:, length:, row].any() for row, length in enumerate(LENGTHS))


@pytest.mark.parametrize(("lengths", "wanted"), [([3], [1, 1, 1]), ([4, 2, 2, 1], [4, 3, 1, 1]), ([2, 2], [2, 2])])
def test_rows_that_are_still_read_are_counted_step_by_step(lengths: list[int], wanted: list[int]):
    assert rows_at(lengths) == wanted
