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


def test_a_fresh_mix_is_the_mean_of_the_layers():
    states = torch.randn(5, 1, 2, 3, 4)
    torch.testing.assert_close(ScalarMix(5, 2)(states), states.mean(0).expand(2, -1, -1, -1))


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


def test_a_sequence_of_layers_is_mixed_as_one_tensor_of_them():
    mix, states = random_mix(3, 2), torch.randn(3, 1, 2, 3, 4)
    assert torch.equal(mix(list(states)), mix(states))


def test_the_mix_of_bf16_layers_is_float32_also_under_autocast():
    mix, states = random_mix(2, 2), torch.randn(2, 1, 1, 2, 3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = mix(states)
    assert found.dtype == torch.float32
    assert torch.equal(found, mix(states.float()))


def test_another_number_of_layers_or_lanes_is_noticed():
    with pytest.raises(RuntimeError, match="size"):
        ScalarMix(2)([torch.randn(1, 1, 2, 3)] * 3)
    with pytest.raises(RuntimeError, match="size"):
        ScalarMix(2, 3)(torch.randn(2, 2, 1, 2, 3))


def test_an_encoder_that_trains_gets_its_gradient_through_the_mix():
    mix, states = random_mix(2, 1), torch.randn(2, 1, 1, 2, 3, requires_grad=True)
    mix(states).sum().backward()
    weights = (mix.gamma[:, None] * torch.softmax(mix.scalars, 1))[0].detach()
    torch.testing.assert_close(states.grad, weights.view(2, 1, 1, 1, 1).expand_as(states))
