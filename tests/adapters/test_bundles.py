"""Bundles: which trials may train side by side, and that a member has the bits that it has alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from meltpoint.adapters import heads, modes
from meltpoint.adapters import settings as catalogue
from meltpoint.adapters.head import HeadShape
from meltpoint.adapters.layers.affine import Affine
from meltpoint.adapters.layers.bundle import Bundle, Dropout, MemberRng
from meltpoint.tests.adapters.head_cases import DIM


def test_members_that_disagree_on_a_size_are_no_bundle():
    shape = HeadShape("sentence_classification", DIM, 2)
    settings = [{"mlp.hidden_size": 8}, {"mlp.hidden_size": 9}]
    with pytest.raises(AssertionError, match=r"members of a bundle agree on mlp\.hidden_size"):
        heads.get("mlp")(shape, settings, MemberRng([0, 1]))


# --- which trials may share a bundle ---


def key(mode: str, head: str, **setting: bool | float | str) -> tuple[object, ...]:
    own = {name.replace("__", "."): value for name, value in setting.items()}
    return catalogue.bundle_key(catalogue.complete(own, mode, head), mode, head)


@pytest.mark.parametrize("mode", [name for name in modes.names() if "dropout" not in modes.get(name).unused])
def test_rates_dropout_decay_epochs_and_schedule_do_not_part_a_bundle(mode: str):
    other = key(
        mode, "mlp", learning_rate=0.1, dropout=0.5, weight_decay=0.3, epochs=7, schedule="linear_warmup_decay",
        gradient_clip=0.5,
    )  # fmt: skip
    assert other == key(mode, "mlp")


@pytest.mark.parametrize(
    ("head", "own"),
    [
        *(("mlp", own) for own in ({"batch_size": 8}, {"max_pieces": 64}, {"precision": "fp32"})),
        ("mlp", {"optimiser": "bert_adam"}),
        ("mlp", {"mlp__hidden_size": 9}), ("bilstm_crf", {"bilstm__hidden_size": 9}),
        ("bilstm_crf", {"bilstm__layers": 1}),
    ],
)  # fmt: skip
def test_what_shapes_the_computation_parts_a_bundle(head: str, own: dict[str, int | str]):
    assert key("fine_tuning", head, **own) != key("fine_tuning", head)


GAP = 14_400  # weights of other layers that lie between two members' in the optimiser's buffer


def affine(inputs: int, outputs: int, members: int) -> Affine:
    """Members with the same seed, their weights cut from one buffer, as `StackedAdamW` lays them out."""
    layer = Affine(inputs, outputs, Bundle([{}] * members, MemberRng([0] * members)), std=inputs**-0.5)
    size = inputs * outputs
    buffer = torch.zeros(members, size + GAP)
    buffer[:, :size] = layer.weight.detach().flatten(1)
    layer.weight.data = buffer[:, :size].view(members, outputs, inputs)
    return layer


def first_member(layer: Affine, rows: Tensor, slopes: Tensor, lowered: bool = True) -> list[Tensor]:
    """Its scores, and the gradients of its rows, weights and biases."""
    members = len(layer.weight)
    given = rows.expand(members, -1, -1).clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=lowered):
        found = layer(given)
    found.backward(slopes.expand(members, -1, -1).to(found.dtype))
    assert given.grad is not None
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    return [found[0], given.grad[0], layer.weight.grad[0], layer.bias.grad[0]]


@pytest.mark.parametrize(("inputs", "outputs"), [(1200, 2400), (384, 768), (37, 5)])
@pytest.mark.parametrize(("dtype", "lowered"), [(torch.float32, False), (torch.float32, True), (torch.bfloat16, True)])
@pytest.mark.parametrize("count", [1, 2, 32])
def test_a_member_has_the_bits_that_it_has_alone(
    inputs: int, outputs: int, dtype: torch.dtype, lowered: bool, count: int
):
    torch.manual_seed(0)
    rows, slopes = torch.randn(1, count, inputs).to(dtype), torch.randn(1, count, outputs)
    alone, beside = (first_member(affine(inputs, outputs, members), rows, slopes, lowered) for members in (1, 3))
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


CPU = torch.device("cpu")
SEEDS = st.integers(0, 2**40)
MANY = 3 * 4096


def draw(seeds: list[int], step: int = 0, skipped: int = 0, shape: tuple[int, ...] = (3, 5)) -> torch.Tensor:
    noise = MemberRng(seeds)
    noise.begin(step)
    for _ in range(skipped):
        noise.skip()
    return noise.bits(shape, CPU)


@given(SEEDS, st.integers(0, 10**6), st.lists(SEEDS, max_size=3))
def test_a_members_bits_are_those_that_it_draws_alone(seed: int, step: int, neighbours: list[int]):
    noise = MemberRng([*neighbours, seed])
    noise.begin(step)
    together = noise.bits((3, 5), CPU)
    assert torch.equal(together[noise.seed_rows[-1]], draw([seed], step)[0])


@given(st.lists(SEEDS, min_size=2, max_size=2, unique=True), st.integers(0, 10**6))
def test_another_seed_step_or_call_draws_other_bits(seeds: list[int], step: int):
    base = draw(seeds[:1], step)
    assert not torch.equal(base, draw(seeds[1:], step))
    assert not torch.equal(base, draw(seeds[:1], step + 1))
    assert not torch.equal(base, draw(seeds[:1], step, skipped=1))


def test_a_step_draws_the_same_whatever_was_drawn_before_it():
    noise = MemberRng([1])
    noise.bits((9,), CPU)
    noise.begin(5)
    assert torch.equal(noise.bits((3, 5), CPU), draw([1], 5))


@pytest.mark.parametrize("ratio", [0.1, 0.5, 0.95])
def test_dropout_drops_its_ratio_and_keeps_the_expectation(ratio: float):
    dropout = Dropout([ratio], MemberRng([0]))
    dropped, total = 0.0, 0.0
    for step in range(10):
        dropout.rng.begin(step)
        found = dropout(torch.ones(1, 40_000))
        dropped += (found == 0).float().mean().item() / 10
        total += found.mean().item() / 10
    error = (ratio * (1 - ratio) / 400_000) ** 0.5
    assert dropped == pytest.approx(ratio, abs=5 * error)
    assert total == pytest.approx(1.0, abs=5 * error / (1 - ratio))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.1, 0.5, 0.9])), min_size=1, max_size=4),
    st.booleans(),
    st.integers(1, MANY),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
)
def test_what_is_kept_is_multiplied_and_rounded_once_forward_and_back(
    members: list[tuple[int, float]], shared: bool, size: int, dtype: torch.dtype
):
    seeds, ratios = ([member[part] for member in members] for part in (0, 1))
    assume(any(ratios))
    noise = MemberRng(seeds)
    dropout = Dropout(ratios, noise)
    states = torch.randn(1 if shared else len(members), size, dtype=dtype, requires_grad=True)
    slopes = torch.randn(len(members), size, dtype=dtype)
    found = dropout(states)
    found.backward(slopes)
    noise.begin(0)
    draws = noise.bits((size,), CPU)[noise.seed_rows].int() + 2**15
    levels = torch.tensor([round(ratio * 2**16) for ratio in ratios])[:, None]
    scale = (1 / (1 - levels.double() / 2**16)).to(torch.promote_types(dtype, torch.float32))
    expected, by_states = ((own.double() * scale * (draws >= levels)).to(dtype) for own in (states, slopes))
    assert torch.equal(found, expected)
    assert torch.equal(states.grad, by_states.sum(0, keepdim=True) if shared else by_states)


def test_dropout_is_the_identity_in_evaluation_and_where_every_ratio_is_zero():
    states = torch.randn(1, 9)
    assert Dropout([0.5, 0.1], MemberRng([0, 1])).eval()(states) is states
    assert Dropout([0.0, 0.0], MemberRng([0, 1]))(states) is states


def test_dropout_that_drops_nothing_leaves_later_draws_where_they_were():
    noise, alone = MemberRng([1]), MemberRng([1])
    Dropout([0.0], noise)(torch.ones(1, 3))
    Dropout([0.5], alone)(torch.ones(1, 3))
    assert torch.equal(noise.bits((8,), CPU), alone.bits((8,), CPU))
