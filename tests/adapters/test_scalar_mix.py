"""The scalar mix against a calculation by hand (Peters et al. 2018, eq. 1)."""

from __future__ import annotations

import math

import pytest
import torch

from meltpoint.adapters.scalar_mix import ScalarMix


def test_the_mix_is_gamma_times_the_softmax_weighted_sum():
    mix = ScalarMix(2)
    with torch.no_grad():
        mix.scalars.copy_(torch.tensor([0.0, math.log(3.0)]))  # softmax: 1/4, 3/4
        mix.gamma.fill_(2.0)
    states = (torch.tensor([[[4.0, 8.0]]]), torch.tensor([[[-4.0, 0.0]]]))
    torch.testing.assert_close(mix(states), torch.tensor([[[2 * (1 - 3), 2 * 2.0]]]))


def test_a_fresh_mix_is_the_mean_of_the_layers():
    states = tuple(torch.randn(2, 3, 4) for _ in range(5))
    torch.testing.assert_close(ScalarMix(5)(states), torch.stack(states).mean(0))


def test_scalars_and_gamma_learn():
    mix = ScalarMix(3)
    mix([torch.randn(2, 3, 4) for _ in range(3)]).pow(2).sum().backward()
    assert mix.scalars.grad is not None
    assert mix.scalars.grad.abs().min() > 0
    assert mix.gamma.grad is not None


def test_the_mix_of_bf16_layers_is_float32():
    with torch.autocast("cpu", torch.bfloat16):
        assert ScalarMix(2)([torch.randn(1, 2, 3).bfloat16(), torch.randn(1, 2, 3)]).dtype == torch.float32


def test_another_number_of_layers_is_noticed():
    with pytest.raises(AssertionError, match="3 layers for a mix of 2"):
        ScalarMix(2)([torch.randn(1, 2, 3)] * 3)
