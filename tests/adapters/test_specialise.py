"""A module's behaviour changed in place, and changed back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from meltpoint.adapters.families.huggingface.specialise import restore, specialise


class Doubled(nn.Module):
    def forward(self, states: Tensor) -> Tensor:
        found: Tensor = 2 * super().forward(states)
        return found


def test_a_module_computes_otherwise_and_keeps_its_weights_their_names_and_its_class():
    layer, states = nn.Linear(3, 2), torch.randn(4, 3)
    weight, names, expected = layer.weight, list(layer.state_dict()), layer(states)
    specialise(layer, Doubled)
    assert torch.equal(layer(states), 2 * expected)
    assert isinstance(layer, nn.Linear)
    assert layer.weight is weight
    assert list(layer.state_dict()) == names
    assert torch.equal(copy.deepcopy(layer)(states), 2 * expected)
    restore(layer)
    assert type(layer) is nn.Linear
    assert torch.equal(layer(states), expected)


def test_modules_of_one_class_get_one_class_and_changes_are_undone_one_by_one():
    layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
    for layer in layers:
        specialise(layer, Doubled)
    once = type(layers[0])
    assert type(layers[1]) is once
    specialise(layers[0], nn.Identity)
    restore(layers[0])
    assert type(layers[0]) is once
    restore(layers[0])
    assert type(layers[0]) is nn.Linear


def test_what_was_not_specialised_cannot_be_restored():
    with pytest.raises(AssertionError, match="Linear was not specialised"):
        restore(nn.Linear(2, 2))
