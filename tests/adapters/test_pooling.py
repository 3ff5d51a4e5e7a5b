"""The scalar mix against a calculation by hand (Peters et al. 2018, eq. 1), for one member and for several."""

from __future__ import annotations

import math

import pytest
import torch

from meltpoint.adapters.layers.affine import ScalarMix


def random_mix(layers: int, trials: int) -> ScalarMix:
    mix = ScalarMix(layers, trials)
    with torch.no_grad():
        for parameter in mix.parameters():
            parameter.normal_()
    return mix


def test_the_mix_is_gamma_times_the_softmax_weighted_sum():
    mix = ScalarMix(2)
    with torch.no_grad():
        mix.scalars.copy_(torch.tensor([[0.0, math.log(3.0)]]))  # softmax: 1/4, 3/4
        mix.gamma.fill_(2.0)
    states = (torch.tensor([[[[4.0, 8.0]]]]), torch.tensor([[[[-4.0, 0.0]]]]))
    torch.testing.assert_close(mix(states), torch.tensor([[[[2 * (1 - 3), 2 * 2.0]]]]))


@pytest.mark.parametrize("lanes", [1, 3])
def test_each_member_mixes_its_own_lane_with_its_own_weights_and_learns_them(lanes: int):
    torch.manual_seed(0)
    mix, states = random_mix(4, 3), torch.randn(4, lanes, 2, 5, 6)
    found = mix(states)
    found.sin().sum().backward()
    for member in range(3):
        scalars = mix.scalars.detach()[member].requires_grad_()
        gamma = mix.gamma.detach()[member].requires_grad_()
        weights = gamma * torch.softmax(scalars, 0)
        alone = sum(weight * layer for weight, layer in zip(weights, states[:, member % lanes], strict=True))
        torch.testing.assert_close(found[member], alone)
        alone.sin().sum().backward()
        torch.testing.assert_close(mix.scalars.grad[member], scalars.grad, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(mix.gamma.grad[member], gamma.grad, atol=1e-5, rtol=1e-4)


def test_the_mix_of_bf16_layers_is_float32_also_under_autocast():
    mix, states = random_mix(2, 2), torch.randn(2, 1, 1, 2, 3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = mix(states)
    assert found.dtype == torch.float32
    assert torch.equal(found, mix(states.float()))
