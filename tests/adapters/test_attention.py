"""The stacked transformer against torch.nn.TransformerEncoderLayer, with norms after the sub-layers and before them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from meltpoint.adapters.layers.attention import Transformer, TransformerLayer, positions
from meltpoint.adapters.layers.bundle import Bundle, MemberRng

TRIALS, DIM, HEADS, FEED_FORWARD = 2, 8, 2, 12


def stacked(layers: int = 2, dropout: float = 0.0, norm_first: bool = False) -> Transformer:
    bundle = Bundle([{"dropout": dropout}] * TRIALS, MemberRng(range(TRIALS)))
    return Transformer(DIM, bundle, layers, HEADS, FEED_FORWARD, norm_first)


@torch.no_grad()
def reference(layer: TransformerLayer, member: int) -> nn.TransformerEncoderLayer:
    """A member's layer as torch's own."""
    made = nn.TransformerEncoderLayer(
        DIM, HEADS, FEED_FORWARD, dropout=0.0, batch_first=True, norm_first=layer.norm_first
    )
    made.self_attn.in_proj_weight.copy_(layer.projections.weight[member])
    made.self_attn.in_proj_bias.copy_(layer.projections.bias[member])
    pairs = [
        (made.self_attn.out_proj, layer.output), (made.linear1, layer.hidden), (made.linear2, layer.back),
        (made.norm1, layer.first_norm), (made.norm2, layer.second_norm),
    ]  # fmt: skip
    for own, mine in pairs:
        own.weight.copy_(mine.weight[member])
        own.bias.copy_(mine.bias[member])
    return made


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("count", [5, 130])
def test_every_member_is_torchs_encoder_and_padding_changes_nothing(count: int, norm_first: bool):
    torch.manual_seed(0)
    transformer, states, lengths = stacked(norm_first=norm_first), torch.randn(TRIALS, 3, count, DIM), [count, 1, 3]
    for parameter in transformer.parameters():  # norms and biases that are not those of a fresh layer
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    mask = torch.arange(count) < torch.tensor(lengths)[:, None]
    found = transformer(states, mask[None])
    for member in range(TRIALS):
        layers = [reference(layer, member) for layer in transformer.layers]
        for row, length in enumerate(lengths):
            expected = states[member, row : row + 1, :length] + positions(length, DIM, states.device)
            for layer in layers:
                expected = layer(expected)
            if transformer.norm is not None:
                weight, bias = transformer.norm.weight[member], transformer.norm.bias[member]
                expected = nn.functional.layer_norm(expected, (DIM,), weight, bias)
            torch.testing.assert_close(found[member, row, :length], expected[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("norm_first", [False, True])
@torch.no_grad()
def test_the_sum_of_states_and_positions_has_dropout_only_where_the_first_norm_follows_it(norm_first: bool):
    """With norms first the sum lives on to the pooling, and its dropout made evaluation differ from training."""
    transformer, mask = stacked(dropout=0.5, norm_first=norm_first), torch.ones(1, 3, 9, dtype=torch.bool)
    states = torch.randn(TRIALS, 3, 9, DIM)
    trained, evaluated = transformer.train()(states, mask), transformer.eval()(states, mask)
    assert not torch.allclose(trained, evaluated), "sub-layers have dropout"
    for layer in transformer.layers:
        for part in (layer.output, layer.back):
            part.weight.zero_()
            part.bias.zero_()
    same = torch.allclose(transformer.train()(states, mask), transformer.eval()(states, mask))
    assert same == norm_first


def test_positions_are_the_papers_sines_and_cosines():
    found = positions(7, 6, torch.device("cpu"))
    for place in range(7):
        for number in range(3):
            angle = place / 10_000 ** (2 * number / 6)
            expected = [math.sin(angle), math.cos(angle)]
            assert found[place, 2 * number : 2 * number + 2].tolist() == pytest.approx(expected, abs=1e-6)


def test_a_row_of_padding_alone_gives_no_nan():
    states, mask = torch.randn(TRIALS, 2, 4, DIM), torch.tensor([[True] * 4, [False] * 4])
    assert stacked()(states, mask[None]).isfinite().all()


def test_layer_norms_and_biases_are_vectors_of_a_member_so_that_they_do_not_decay():
    found = {name: parameter.ndim for name, parameter in stacked(1).named_parameters()}
    assert {ndim for name, ndim in found.items() if "norm" in name or name.endswith("bias")} == {2}
    assert {ndim for name, ndim in found.items() if "norm" not in name and name.endswith("weight")} == {3}
