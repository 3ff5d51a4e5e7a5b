"""MemberRng and dropout: a member's draws are a function of its own seed, the step and the call, and nothing else."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from meltpoint.adapters.layers.bundle import Dropout, MemberRng

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


def test_members_of_one_seed_share_a_draw():
    noise = MemberRng([7, 3, 7])
    assert noise.seed_rows == [0, 1, 0]
    assert noise.bits((4,), CPU).shape == (2, 4)


def test_a_step_draws_the_same_whatever_was_drawn_before_it():
    noise = MemberRng([1])
    noise.bits((9,), CPU)
    noise.begin(5)
    assert torch.equal(noise.bits((3, 5), CPU), draw([1], 5))


def test_all_sixteen_bits_are_fair():
    words = draw([3], shape=(400_001,))[0].int() & 0xFFFF  # an odd count: no whole number of 64-bit words
    for bit in range(16):
        share = ((words >> bit) & 1).float().mean().item()
        assert share == pytest.approx(0.5, abs=0.004), f"bit {bit}: {share}"  # five standard errors


def test_first_weights_are_a_function_of_a_members_own_seed():
    def first(seeds: list[int], member: int) -> float:
        return torch.randn((), generator=MemberRng(seeds).initial(member)).item()

    assert first([5, 9], 1) == first([9], 0) != first([5], 0)


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


def test_members_drop_at_their_own_ratios_and_one_of_zero_keeps_everything():
    noise = MemberRng([1, 1, 2])
    found = Dropout([0.0, 0.5, 0.5], noise)(torch.ones(1, 1000))
    assert found.shape == (3, 1000)
    assert torch.equal(found[0], torch.ones(1000))
    assert not torch.equal(found[1], found[2])
    assert set(found[1].tolist()) == {0.0, 2.0}


def test_a_higher_ratio_under_one_seed_drops_what_a_lower_one_drops():
    low, high = Dropout([0.2, 0.6], MemberRng([4, 4]))(torch.ones(1, 1000))
    assert not bool(((low == 0) & (high != 0)).any())


def test_dropouts_gradient_is_its_mask():
    states = torch.randn(1, 50, requires_grad=True)
    dropout = Dropout([0.3, 0.6], MemberRng([1, 2]))
    found = dropout(states)
    found.sum().backward()
    torch.testing.assert_close(states.grad, (found / states).sum(0, keepdim=True))


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


def test_dropout_of_bf16_states_is_bf16_with_the_exact_scale():
    found = Dropout([0.1], MemberRng([0]))(torch.full((1, 1000), 9.0).bfloat16())
    assert found.dtype == torch.bfloat16
    assert set(found.tolist()[0]) == {0.0, 10.0}


def test_kept_members_go_on_with_their_own_draws():
    noise = MemberRng([1, 2, 2])
    dropout = Dropout([0.1, 0.0, 0.5], noise)
    noise.begin(3)
    before = dropout(torch.ones(1, 100))
    noise.keep([2, 0])
    dropout.keep([2, 0])
    noise.begin(3)
    assert torch.equal(dropout(torch.ones(1, 100)), before[[2, 0]])
    assert noise.seeds == (2, 1)
