"""Weights packed for a CPU while they stand still: the bits of the layers' own products, and forgotten in time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from meltpoint.adapters import master_weights, packed_linear
from meltpoint.adapters.batching import evaluation_batches, inputs
from meltpoint.adapters.encoder import Encoder
from meltpoint.adapters.packed_linear import can_pack, standing_still
from meltpoint.adapters.tokenising import encode_split
from meltpoint.tasks.core.task import Example, Kind

KIND: Kind = "sentence_classification"
LAST_BIT = {"rtol": 2**-7, "atol": 1e-4}
"""Of bf16: the order of a sum is oneDNN's own affair. Where this was written it is the same to the last bit."""
BF16 = {"device_type": "cpu", "dtype": torch.bfloat16}


def read(layer: nn.Module, states: Tensor) -> Tensor:
    with torch.no_grad(), torch.autocast(**BF16):
        found: Tensor = layer(states)
    return found


@given(st.integers(1, 200), st.sampled_from([2, 16, 24, 32, 384]), st.sampled_from([1, 3, 32, 384]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_packed_product_is_the_plain_one(rows: int, width: int, outputs: int, has_bias: bool):
    torch.manual_seed(rows)
    layer = nn.Linear(width, outputs, bias=has_bias)
    states = torch.randn(rows, width)
    plain = read(layer, states)
    with standing_still(layer):
        packed = read(layer, states)
        assert torch.equal(read(layer, states.bfloat16()), packed)
    assert packed.dtype == plain.dtype == torch.bfloat16
    torch.testing.assert_close(packed, plain, **LAST_BIT)


def evaluated(encoder: Encoder, examples: list[Example], precision: torch.dtype) -> list[Tensor]:
    split = encode_split(KIND, examples, encoder.tokenizer, 32)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        return [
            torch.stack(encoder.read(batch))
            for batch in evaluation_batches(inputs(split), KIND, encoder.tokenizer.pad_piece, 4)
        ]


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("has_masters", [True, False])
def test_every_family_reads_the_same_to_the_last_bit(
    load_tiny: Callable[[str], Encoder],
    make_examples: Callable[[Kind, int], list[Example]],
    family: str,
    precision: torch.dtype,
    has_masters: bool,
):
    encoder = load_tiny(family).eval()
    if has_masters and precision == torch.bfloat16:
        master_weights.adopt(encoder)
    examples = make_examples(KIND, 11)
    plain = evaluated(encoder, examples, precision)
    with standing_still(encoder):
        packed = evaluated(encoder, examples, precision)
    for one, other in zip(plain, packed, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.05 if precision == torch.bfloat16 else 0.0)


@pytest.mark.skipif(not can_pack(), reason="oneDNN has no bf16 on this processor, so nothing is packed")
def test_a_weight_is_packed_once_an_evaluation_and_anew_in_the_next(monkeypatch: pytest.MonkeyPatch):
    layer = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    packs: list[object] = []
    pack = packed_linear._Packed._pack
    monkeypatch.setattr(packed_linear._Packed, "_pack", lambda self: (packs.append(self), pack(self))[1])
    states = torch.randn(5, 8)
    found = []
    for _ in range(2):
        with standing_still(layer):
            found += [read(layer, states) for _ in range(3)]
        with torch.no_grad():
            layer[0].weight.mul_(2.0)
    assert len(packs) == 4
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[2], found[3])


def test_gradients_and_float32_go_the_layers_own_way_and_nothing_stays_behind(monkeypatch: pytest.MonkeyPatch):
    layer = nn.Linear(8, 4)
    states = torch.randn(5, 8)
    with monkeypatch.context() as patch:
        patch.setattr(packed_linear._Packed, "_pack", None)
        with standing_still(layer):
            with torch.autocast(**BF16):
                layer(states).float().sum().backward()
            with torch.no_grad():
                assert torch.equal(layer(states), nn.functional.linear(states, layer.weight, layer.bias))
    assert layer.weight.grad is not None
    with pytest.raises(KeyError, match="broken"), standing_still(layer):
        raise KeyError("broken")
    assert "forward" not in vars(layer)


def test_a_torch_without_packed_layouts_reads_in_its_own_way(monkeypatch: pytest.MonkeyPatch):
    layer = nn.Linear(8, 4)
    states = torch.randn(5, 8)
    plain = read(layer, states)
    monkeypatch.setattr(packed_linear, "_PARTS", ("_of_another_version",))
    with standing_still(layer):
        assert "forward" not in vars(layer)
        assert torch.equal(read(layer, states), plain)


def test_inside_another_and_beside_a_layer_of_its_own_kind_nothing_is_replaced():
    class Doubled(nn.Linear):
        def forward(self, states: Tensor) -> Tensor:
            return 2 * super().forward(states)

    layer, states = nn.Sequential(nn.Linear(8, 8), Doubled(8, 4)), torch.randn(5, 8)
    plain = read(layer, states)
    with standing_still(layer):
        with standing_still(layer):
            inner = read(layer, states)
        outer = read(layer, states)
    for found in (inner, outer, read(layer, states)):
        torch.testing.assert_close(found, plain, **LAST_BIT)
    assert not any("forward" in vars(own) for own in layer)
