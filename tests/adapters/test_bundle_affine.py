"""Affine layers of a bundle in bf16, at the sizes of a real head: a member's bits are those that it has alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from meltpoint.adapters.layers.affine import Affine
from meltpoint.adapters.layers.bundle import Bundle
from meltpoint.adapters.layers.dropout import MemberRng

GAP = 14_400  # weights of other layers that lie between two members' in the optimiser's buffer


def affine(inputs: int, outputs: int, members: int) -> Affine:
    """Members with the same seed, their weights cut from one buffer, as `StackedAdamW` lays them out."""
    layer = Affine(inputs, outputs, Bundle([{}] * members, MemberRng([0] * members)), std=inputs**-0.5)
    size = inputs * outputs
    buffer = torch.zeros(members, size + GAP)
    buffer[:, :size] = layer.weight.detach().flatten(1)
    layer.weight.data = buffer[:, :size].view(members, outputs, inputs)
    return layer


def first_member(layer: Affine, rows: Tensor, slopes: Tensor) -> list[Tensor]:
    """Its scores, and the gradients of its rows, weights and biases."""
    members = len(layer.weight)
    given = rows.expand(members, -1, -1).clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(given)
    found.backward(slopes.expand(members, -1, -1).to(found.dtype))
    assert given.grad is not None
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return [found[0], given.grad[0], layer.weight.grad[0], layer.bias.grad[0]]


@pytest.mark.parametrize(("inputs", "outputs"), [(1200, 2400), (384, 768), (37, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_member_has_the_bits_that_it_has_alone(inputs: int, outputs: int, dtype: torch.dtype):
    torch.manual_seed(0)
    rows, slopes = torch.randn(1, 32, inputs).to(dtype), torch.randn(1, 32, outputs)
    alone, beside = (first_member(affine(inputs, outputs, members), rows, slopes) for members in (1, 3))
    assert [torch.equal(*pair) for pair in zip(alone, beside, strict=True)] == [True] * 4


def test_gradients_are_those_of_torchs_own_linear_layer():
    torch.manual_seed(0)
    layer, rows, slopes = affine(48, 24, 1), torch.randn(1, 32, 48), torch.randn(1, 32, 24)
    found = first_member(layer, rows, slopes)
    plain = torch.nn.Linear(48, 24)
    plain.weight.data, plain.bias.data = layer.weight.detach()[0], layer.bias.detach()[0]
    given = rows[0].clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        scores = plain(given)
    scores.backward(slopes[0].to(scores.dtype))
    for own, other in zip(found, [scores, given.grad, plain.weight.grad, plain.bias.grad], strict=True):
        torch.testing.assert_close(own, other, rtol=2e-2, atol=2e-2)
