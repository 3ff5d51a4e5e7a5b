"""The heads for single inputs, row by row and without padding, against loops written from their equations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters import heads
from meltpoint.adapters.data.batch import Batch
from meltpoint.adapters.head import Head, HeadShape
from meltpoint.adapters.hyperparameters import Value
from meltpoint.adapters.layers import attention
from meltpoint.adapters.layers.affine import Maxout, elementwise, first_and_last, highest, lowest, mean, pool_rows
from meltpoint.adapters.layers.attention import AttentivePooling, GroupedConvolution, attend_to_itself
from meltpoint.adapters.layers.bundle import Bundle, MemberRng
from meltpoint.adapters.layers.lstm import BiLSTM
from meltpoint.tasks.core.task import Kind

TRIALS, LENGTHS, WIDTH, DIM = 3, [5, 1, 8], 9, 6
MASK = (torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None])[None]


def stack(trials: int = TRIALS, **setting: Value) -> Bundle:
    own = {name.replace("__", "."): value for name, value in setting.items()}
    return Bundle([{"dropout": 0.0, **own}] * trials, MemberRng(range(trials)))


def random_states(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*(shape or (TRIALS, 3, WIDTH, DIM)), generator=torch.Generator().manual_seed(seed))


def every_row(states: Tensor) -> list[tuple[int, int, Tensor]]:
    """(member, row, its real states), for each."""
    return [(t, r, states[t, r, :length]) for t in range(len(states)) for r, length in enumerate(LENGTHS)]


# --- bi-attention of a row with itself, and pooling ---


def test_attention_is_computed_in_float32_under_autocast():
    states = 30 * random_states().bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = attend_to_itself(states, MASK)
    assert torch.equal(found, attend_to_itself(states.float(), MASK))


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        (highest, lambda own: [max(column) for column in zip(*own, strict=True)]),
        (lowest, lambda own: [min(column) for column in zip(*own, strict=True)]),
        (mean, lambda own: [sum(column) / len(own) for column in zip(*own, strict=True)]),
        (first_and_last, lambda own: own[0] + own[-1]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pooling_reads_real_pieces_alone_and_gives_float32(
    pooling: Callable[..., Tensor], expected: Callable[[list[list[float]]], list[float]], dtype: torch.dtype
):
    states = random_states().to(dtype)
    found = pool_rows(pooling, states, MASK)
    assert found.dtype == torch.float32
    for member, row, own in every_row(states):
        assert found[member, row].tolist() == pytest.approx(expected(own.tolist()), abs=1e-6)


def test_all_members_at_once_as_on_a_gpu_get_what_each_gets_alone():
    pooling, states = AttentivePooling(DIM, stack()), random_states()
    mask = MASK.expand(TRIALS, -1, -1)
    torch.testing.assert_close(attention._attended(states, mask), attend_to_itself(states, MASK))
    torch.testing.assert_close(attention._weighted(states, mask, pooling.weight), pooling(states, MASK))
    for function in (highest, lowest, mean, first_and_last):
        torch.testing.assert_close(function(states, mask), pool_rows(function, states, MASK))


# --- maxout ---


def test_the_weights_of_maxout_and_attentive_pooling_start_with_the_variance_of_torchs_linear():
    torch.manual_seed(0)
    expected = nn.Linear(400, 300).weight.std().item()
    assert Maxout(400, 100, 4, stack(1)).affine.weight.std().item() == pytest.approx(expected, rel=0.02)
    assert AttentivePooling(40_000, stack(1)).weight.std().item() == pytest.approx((3 * 40_000) ** -0.5, rel=0.02)


# --- convolution ---


@settings(max_examples=30, deadline=None)
@given(size=st.integers(1, 6), pieces=st.integers(1, 7), groups=st.integers(1, 3))
def test_a_grouped_convolution_is_torchs_with_zeros_beyond_both_ends(size: int, pieces: int, groups: int):
    inputs, outputs = 3, 2
    convolution = GroupedConvolution(inputs, outputs, size, groups, stack(2), 1.0)
    states = random_states(2, groups, 4, pieces, inputs)
    found = convolution(states)
    before = (size - 1) // 2
    for member in range(2):
        channels = states[member].movedim(0, 1).transpose(2, 3).flatten(1, 2)  # (batch, groups * inputs, pieces)
        kernel = convolution.weight[member].flatten(0, 1).view(groups * outputs, size, inputs).transpose(1, 2)
        padded = functional.pad(channels, (before, size - 1 - before))
        expected = functional.conv1d(padded, kernel, groups=groups).unflatten(1, (groups, outputs))
        torch.testing.assert_close(found[member], expected.movedim(1, 0).transpose(2, 3), atol=1e-5, rtol=1e-4)


# --- whole heads, a row at a time ---

SIZES = {
    "bcn.hidden_size": 4, "bcn.pool_size": 3, "highway_lstm.hidden_size": 4, "highway_lstm.layers": 3,
    "densenet.growth_rate": 2, "bilstm.hidden_size": 4,
}  # fmt: skip


def build(word: str, kind: Kind = "sentence_classification", **setting: Value) -> Head:
    own = {name.replace("__", "."): value for name, value in setting.items()}
    shape = HeadShape(kind, DIM, 2)
    members = [{"dropout": 0.0, **SIZES, **own}] * TRIALS
    return heads.get(word)(shape, members, MemberRng(range(TRIALS))).eval()


def check_rows(head: Head, expected: Callable[[int, Tensor], Tensor]) -> None:
    """Each row's scores against those of a member that reads the row alone, without padding."""
    states = random_states()
    batch = Batch((0, 1, 2), torch.ones(3, WIDTH, dtype=torch.int64), MASK[0])
    lanes = Batch(batch.rows * TRIALS, batch.pieces.repeat(TRIALS, 1), MASK[0].repeat(TRIALS, 1), lanes=TRIALS)
    found = head(states, lanes)
    for member, row, own in every_row(states):
        torch.testing.assert_close(found[member, row], expected(member, own), atol=1e-5, rtol=1e-4)
    shared = head(states[:1], batch)
    for member in range(TRIALS):
        for row, length in enumerate(LENGTHS):
            one = expected(member, states[0, row, :length])
            torch.testing.assert_close(shared[member, row], one, atol=1e-5, rtol=1e-4)


def read(bilstm: BiLSTM, member: int, states: Tensor) -> Tensor:
    """By torch's own LSTM: (pieces, inputs) → (pieces, dim)."""
    inputs, hidden = bilstm.weight_ih_l0.shape[2], bilstm.weight_hh_l0.shape[2]
    lstm = nn.LSTM(inputs, hidden, bilstm.layers, batch_first=True, bidirectional=True)
    lstm.load_state_dict({name: parameter[member] for name, parameter in bilstm.named_parameters()})
    return lstm(states[None])[0][0]


def affine(layer: nn.Module, member: int, states: Tensor) -> Tensor:
    return states @ layer.weight[member].T + layer.bias[member]


def test_bcn_is_mccanns_network_with_allennlps_parts():
    head = build("bcn")
    assert [maxout.outputs for maxout in head.maxouts] == [16, 8, 2]

    def expected(member: int, states: Tensor) -> Tensor:
        x = read(head.encoder, member, affine(head.feedforward, member, states).clamp(min=0))
        c = torch.softmax(x @ x.T, 1) @ x
        y = read(head.integrator, member, torch.cat([x, x - c, x * c], 1))
        shares = torch.softmax(y @ head.attention.weight[member, 0], 0)
        vector = torch.cat([y.max(0).values, y.min(0).values, y.mean(0), shares @ y])
        for maxout in head.maxouts:
            vector = affine(maxout.affine, member, vector).view(maxout.outputs, 3).max(1).values
        return vector

    check_rows(head, expected)


def test_bcn_has_allennlps_sizes_and_at_a_dropout_of_a_quarter_its_ratios():
    head = heads.get("bcn")(HeadShape("sentence_classification", 768, 5), [{"dropout": 0.25}], MemberRng([0]))
    assert head.feedforward.weight.shape == (1, 300, 768)
    assert (head.encoder.dim, head.encoder.layers, head.integrator.dim, head.integrator.layers) == (600, 1, 600, 1)
    assert head.integrator.weight_ih_l0.shape == (1, 1200, 1800)
    shapes = [tuple(maxout.affine.weight.shape[1:]) for maxout in head.maxouts]
    assert shapes == [(4 * 1200, 2400), (4 * 600, 1200), (4 * 5, 600)]
    places = [head.dropout, head.encoder.dropout, head.integrator.dropout, *head.dropouts]
    ratios = [place.levels[0] / 2**16 for place in places]
    assert ratios == pytest.approx([0.25, 0.25, 0.0, 0.1, 0.2, 0.3], abs=1e-4)


def test_bcn_drops_of_the_pooled_vector_least_and_of_the_second_maxout_most():
    """AllenNLP applies `integrator_dropout` to the pooled vector; its maxout network drops after each of its layers."""
    head = build("bcn")
    seen: list[tuple[int, int]] = []
    for place, dropout in enumerate(head.dropouts):
        dropout.register_forward_pre_hook(lambda _, given, place=place: seen.append((place, given[0].shape[-1])))
    head(random_states()[:1], Batch((0, 1, 2), torch.ones(3, WIDTH, dtype=torch.int64), MASK[0]))
    assert seen == [(0, 8 * 4), (1, 16), (2, 8)]


def test_bcn_never_drops_more_than_the_largest_ratio_that_a_setting_may_name():
    head = build("bcn", dropout=0.95)
    assert [place.levels[0] / 2**16 for place in head.dropouts] == pytest.approx([0.38, 0.76, 0.95], abs=1e-4)


def test_highway_layers_mix_what_they_read_with_what_comes_in_by_a_gate():
    head = build("highway_lstm")
    assert len(head.highways) == 2

    def expected(member: int, states: Tensor) -> Tensor:
        x = read(head.first, member, states)
        for layer in head.highways:
            t = torch.sigmoid(affine(layer.gate, member, x))
            x = t * read(layer.bilstm, member, x) + (1 - t) * x
        return affine(head.scores.linear, member, torch.cat([x.max(0).values, x.mean(0)]))

    check_rows(head, expected)
    assert all(bool((layer.gate.bias == -1).all()) for layer in head.highways)


@pytest.mark.parametrize("size", [1, 3, 4])
def test_densenet_is_four_blocks_of_four_convolutions_each_of_all_that_comes_before(size: int):
    head = build("densenet", densenet__kernel_size=size)
    before = (size - 1) // 2

    def kernel(layer: nn.Module, block: int, member: int) -> Tensor:
        """(growth, channels, size), the states' channels first, then the block's own."""
        parts = [layer.from_states.weight[member].view(4, 2, size, DIM)[block]]
        if layer.from_block is not None:
            parts.append(layer.from_block.weight[member, block].view(2, size, -1))
        return torch.cat(parts, 2).transpose(1, 2)

    def expected(member: int, states: Tensor) -> Tensor:
        blocks = []
        for block in range(4):
            channels = states.T  # (channels, pieces)
            for layer in head.layers:
                bias = layer.from_states.bias[member].view(4, 2)[block]
                padded = functional.pad(channels, (before, size - 1 - before))
                new = functional.conv1d(padded[None], kernel(layer, block, member), bias)[0].clamp(min=0)
                channels = torch.cat([channels, new])
            blocks.append(channels[DIM:].max(1).values)
        return affine(head.scores.linear, member, torch.cat([states[0], states.max(0).values, *blocks]))

    check_rows(head, expected)


def test_densenet_starts_with_kaimings_variance_in_every_convolution():
    shape = HeadShape("sentence_classification", 256, 2)
    head = heads.get("densenet")(shape, [{"densenet.growth_rate": 64}], MemberRng([0]))
    for number, layer in enumerate(head.layers):
        expected = (2 / (3 * (256 + 64 * number))) ** 0.5
        assert layer.from_states.weight.std().item() == pytest.approx(expected, rel=0.02)
        if number:
            assert layer.from_block.weight.std().item() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("max", lambda own: own.max(0).values),
        ("mean", lambda own: own.mean(0)),
        ("first_last", lambda own: torch.cat([own[0], own[-1]])),
        ("cls", lambda own: own[0]),
    ],
)
def test_pooling_is_one_linear_layer_on_the_pooled_states(kind: str, expected: Callable[[Tensor], Tensor]):
    head = build("pooling", pooling__kind=kind)
    check_rows(head, lambda member, own: affine(head.scores.linear, member, expected(own)))
    assert {name for name, _ in head.named_parameters()} == {"scores.linear.weight", "scores.linear.bias"}


def test_pooling_takes_the_maximum_unless_it_is_told_otherwise():
    assert heads.get("pooling")(HeadShape("pair_regression", DIM, 1, (0.0, 5.0)), [{}], MemberRng([0])).kind == "max"


# --- labels of words (Peters, Ruder & Smith 2019, appendix A.1) ---


@pytest.mark.parametrize("word", ["bilstm", "bilstm_crf"])
def test_two_lstm_layers_read_all_pieces_and_a_word_is_labelled_from_its_first_one(word: str):
    head, states = build(word, "sequence_labelling"), random_states(1, 3, WIDTH, DIM)
    starts = torch.tensor([[1, 2], [0, 0], [1, 5]])
    words = torch.tensor([[True, True], [True, False], [True, True]])
    batch = Batch((0, 1, 2), torch.ones(3, WIDTH, dtype=torch.int64), MASK[0], None, starts, words)
    found = head(states, batch)
    assert head.bilstm.layers == 2
    for member in range(TRIALS):
        for row, length in enumerate(LENGTHS):
            pieces = read(head.bilstm, member, states[0, row, :length])
            for place in range(int(words[row].sum())):
                one = affine(head.scores.linear, member, pieces[starts[row, place]])
                torch.testing.assert_close(found[member, row, place], one, atol=1e-5, rtol=1e-4)


# --- bits ---


@given(numbers=st.integers(1, 70))
def test_an_elementwise_function_gives_a_member_the_bits_that_it_has_alone(numbers: int):
    states = random_states(TRIALS, numbers)
    together = elementwise(torch.sigmoid, states)
    assert all(torch.equal(together[member], torch.sigmoid(states[member].clone())) for member in range(TRIALS))
