"""The compiled loops against what they stand for: torch in float64, with the very masks that they draw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertSelfOutput

from meltpoint.adapters.cpu.gelu import gelu
from meltpoint.adapters.cpu.kernels import LANES
from meltpoint.adapters.cpu.kernels import attention as attention_kernels
from meltpoint.adapters.cpu.kernels import dropping as dropping_kernels
from meltpoint.adapters.cpu.kernels import gelu as gelu_kernels
from meltpoint.adapters.cpu.kernels import mixing as mixing_kernels
from meltpoint.adapters.cpu.kernels import residual_norm as residual_kernels
from meltpoint.adapters.cpu.kernels.dropping import Dropping, draw
from meltpoint.adapters.cpu.kernels.warming import warm_up
from meltpoint.adapters.cpu.residual_norm import residual_norm
from meltpoint.adapters.cpu.unpadded_attention import attend_first, attend_qkv, squares_of
from meltpoint.adapters.data.unpadding import Unpadded, places_of, rounded
from meltpoint.adapters.families.huggingface import residual_norm as outputs
from meltpoint.adapters.layers.dropout import Dropout, MemberRng
from meltpoint.adapters.layers.scalar_mix import ScalarMix

pytestmark = pytest.mark.usefixtures("kernels")

ROOT = Path(__file__).resolve().parents[3]
HEADS, DIM = 3, 20  # a head's size that is no multiple of a vector's
LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=5)
RATIOS = st.sampled_from([0.0, 0.1, 0.5])
SINGLE = {"atol": 2e-5, "rtol": 2e-5}


# --- attention ---


def unpadded_of(lengths: list[int]) -> Unpadded:
    return Unpadded(*places_of(np.array(lengths)))


def draws_of(dropping: Dropping, first: int, count: int) -> Tensor:
    """1 / (1 - ratio) where a number is kept, 0 where it is dropped: (count,) float64."""
    words = np.empty(-(-count // 4), np.uint64)
    draw(dropping.seed, first, words)
    return torch.from_numpy((words.view(np.int16)[:count] >= dropping.level) * float(dropping.factor))


def attended_in_float64(qkv: Tensor, unpadded: Unpadded, scale: float, dropping: Dropping) -> Tensor:
    """(pieces, 3, heads, dim) → (pieces, heads, dim), a row and a head at a time."""
    found = torch.zeros_like(qkv[:, 0])
    for row, length in enumerate(unpadded.lengths):
        own, lanes = slice(int(unpadded.starts[row]), int(unpadded.starts[row + 1])), -(-length // LANES) * LANES
        for head in range(qkv.shape[2]):
            query, key, value = qkv[own, :, head].unbind(1)
            place = qkv.shape[2] * int(squares_of(unpadded)[row]) + head * length * lanes
            kept = draws_of(dropping, place // 4, length * lanes).view(length, lanes)[:, :length].T
            found[own, head] = (torch.softmax(query @ key.T * scale, -1) * kept) @ value
    return found


def same_gradients(found: Tensor, expected: Tensor, one: Tensor, other: Tensor, tolerance: dict[str, float]) -> None:
    torch.testing.assert_close(found.double(), expected, **tolerance)
    torch.manual_seed(1)
    grad = torch.randn(found.shape).to(found.dtype)
    (own,), (right,) = torch.autograd.grad(found, one, grad), torch.autograd.grad(expected, other, grad.double())
    torch.testing.assert_close(own.double(), right, **tolerance)


@given(LENGTHS, RATIOS)
def test_attention_is_the_formula_with_the_mask_that_it_drew(lengths: list[int], ratio: float):
    unpadded = unpadded_of(lengths)
    torch.manual_seed(sum(lengths))
    single = torch.randn(rounded(sum(lengths)), 3, HEADS, DIM, requires_grad=True)
    exact = single.detach().double().requires_grad_()
    state = torch.get_rng_state()
    found = attend_qkv(single, unpadded, 0.3, ratio)
    torch.set_rng_state(state)
    expected = attended_in_float64(exact, unpadded, 0.3, Dropping.drawn(ratio))
    same_gradients(found, expected, single, exact, SINGLE)


def test_attention_in_bf16_is_as_close_as_its_rounding_allows():
    unpadded = unpadded_of([26, 9, 33, 64, 1])
    torch.manual_seed(0)
    rough = torch.randn(rounded(133), 3, HEADS, 32).bfloat16().requires_grad_()
    exact = rough.detach().double().requires_grad_()
    state = torch.get_rng_state()
    found = attend_qkv(rough, unpadded, 0.2, 0.1)
    torch.set_rng_state(state)
    expected = attended_in_float64(exact, unpadded, 0.2, Dropping.drawn(0.1))
    same_gradients(found, expected, rough, exact, {"atol": 0.02, "rtol": 2**-7})


@given(LENGTHS, RATIOS)
def test_one_query_a_row_is_the_formula_with_the_mask_that_it_drew(lengths: list[int], ratio: float):
    unpadded, pieces = unpadded_of(lengths), sum(lengths)
    torch.manual_seed(pieces)
    single = torch.randn(len(lengths) + 2 * rounded(pieces), HEADS, DIM, requires_grad=True)
    exact = single.detach().double().requires_grad_()
    parts = len(lengths), rounded(pieces), rounded(pieces)
    state = torch.get_rng_state()
    query, key, value = torch.split(single, parts)
    found = attend_first(query, key, value, unpadded, 0.3, ratio)
    torch.set_rng_state(state)
    dropping = Dropping.drawn(ratio)
    query, key, value = torch.split(exact, parts)
    expected = torch.zeros_like(query)
    for row, length in enumerate(unpadded.lengths):
        own, batch_row = slice(int(unpadded.starts[row]), int(unpadded.starts[row + 1])), int(unpadded.order[row])
        for head in range(HEADS):
            kept = draws_of(dropping, int(unpadded.starts[row]) * HEADS + head * length, length)
            weights = torch.softmax(key[own, head] @ query[batch_row, head] * 0.3, -1) * kept
            expected[batch_row, head] = weights @ value[own, head]
    same_gradients(found, expected, single, exact, SINGLE)


@pytest.mark.parametrize("part", [0, 1, 2], ids=["query", "key", "value"])
def test_not_a_number_is_never_hidden_and_stays_in_its_row(part: int):
    unpadded = unpadded_of([5, 20])
    qkv = torch.zeros(rounded(25), 3, HEADS, DIM)
    qkv[7, part] = float("nan")  # in the second row, the longer one
    found = attend_qkv(qkv, unpadded, 0.3, 0.0)
    assert found[7 if part == 0 else slice(5, 25)].isnan().all()
    assert found[:5].isfinite().all()


def test_a_training_pass_without_a_gradient_drops_too():
    qkv, unpadded = torch.randn(rounded(25), 3, HEADS, DIM), unpadded_of([5, 20])
    with torch.no_grad():
        assert not torch.equal(attend_qkv(qkv, unpadded, 0.3, 0.5), attend_qkv(qkv, unpadded, 0.3, 0.0))


# --- residual and norm ---


def norm_of(dim: int) -> nn.LayerNorm:
    norm = nn.LayerNorm(dim, eps=1e-6)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


@given(lines=st.integers(1, 150), dim=st.integers(1, 50), ratio=RATIOS)
def test_the_residual_norm_is_the_formula_with_the_mask_that_it_drew(lines: int, dim: int, ratio: float):
    torch.manual_seed(lines * dim)
    norm = norm_of(dim)
    made = [torch.randn(lines, dim, requires_grad=True) for _ in range(2)]
    state = torch.get_rng_state()
    found = residual_norm(made[0], made[1], norm, ratio)
    torch.set_rng_state(state)
    dropping, words = Dropping.drawn(ratio), -(-dim // 4)
    kept = torch.stack([draws_of(dropping, line * words, dim) for line in range(lines)])
    exact = [one.detach().double().requires_grad_() for one in (*made, norm.weight, norm.bias)]
    expected = functional.layer_norm(exact[0] * kept + exact[1], (dim,), exact[2], exact[3], norm.eps)
    # A norm over few numbers may divide by almost nothing: errors are as large as its grad.
    near = {"atol": 1e-3, "rtol": 1e-3} if dim < 4 else {"atol": 2e-4, "rtol": 2e-4}
    torch.testing.assert_close(found.double(), expected, **near)
    grad = torch.randn_like(found)
    own = torch.autograd.grad(found, [*made, norm.weight, norm.bias], grad)
    right = torch.autograd.grad(expected, exact, grad.double())
    for one, other in zip(own[2:], right[2:], strict=True):
        torch.testing.assert_close(one.double(), other, atol=near["atol"] * 10, rtol=near["rtol"] * 10)
    if dim >= 8:
        for one, other in zip(own[:2], right[:2], strict=True):
            torch.testing.assert_close(one.double(), other, **near)


@pytest.mark.parametrize("states", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("residual", [torch.bfloat16, torch.float32])
def test_the_residual_norm_reads_either_type_and_gives_gradients_in_it(states: torch.dtype, residual: torch.dtype):
    torch.manual_seed(0)
    norm = norm_of(48)
    one = torch.randn(3, 7, 48).to(states).requires_grad_()
    other = torch.randn(3, 7, 48).to(residual).requires_grad_()
    found = residual_norm(one, other, norm, 0.0)
    expected = norm(one.float() + other.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    grad = torch.randn_like(found)
    for own, right in zip(
        torch.autograd.grad(found, (one, other), grad), torch.autograd.grad(expected, (one, other), grad), strict=True
    ):
        assert own.dtype == right.dtype
        torch.testing.assert_close(own, right)


# --- GELU ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gelu_is_the_exact_one_in_value_and_slope(dtype: torch.dtype):
    states = torch.linspace(-30, 30, 20_001).to(dtype).requires_grad_()
    exact = states.detach().double().requires_grad_()
    found, expected = gelu(states), functional.gelu(exact)
    near = {"atol": 1e-6, "rtol": 1e-6 if dtype == torch.float32 else 2**-8}
    torch.testing.assert_close(found.double(), expected, **near)
    (own,), (right,) = torch.autograd.grad(found.sum(), states), torch.autograd.grad(expected.sum(), exact)
    torch.testing.assert_close(own.double(), right, **near)


# --- threads ---


def _attention() -> list[Tensor]:
    qkv = torch.randn(rounded(300), 3, HEADS, DIM, requires_grad=True)
    found = attend_qkv(qkv, unpadded_of([*range(1, 24), 24]), 0.3, 0.1)
    return [found, *torch.autograd.grad(found.sum(), qkv)]


def _first() -> list[Tensor]:
    query, states = torch.randn(24, HEADS, DIM, requires_grad=True), torch.randn(rounded(300), HEADS, DIM)
    found = attend_first(query, states, states + 1, unpadded_of([*range(1, 24), 24]), 0.3, 0.1)
    return [found, *torch.autograd.grad(found.sum(), query)]


def _residual() -> list[Tensor]:
    norm, states = norm_of(40), torch.randn(333, 40, requires_grad=True)
    found = residual_norm(states, states * 2, norm, 0.1)
    return [found, *torch.autograd.grad(found.square().sum(), [states, norm.weight, norm.bias])]


def _gelu() -> list[Tensor]:
    states = torch.randn(1001, requires_grad=True)
    found = gelu(states)
    return [found, *torch.autograd.grad(found.sum(), states)]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("run", [_attention, _first, _residual, _gelu])
def test_any_number_of_threads_gives_the_same_bits(run: Callable[[], list[Tensor]]):
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        torch.manual_seed(0)
        found.append(run())
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


# --- taken up where it fits ---


def output_of(dim: int = 16) -> nn.Module:
    return BertSelfOutput(BertConfig(hidden_size=dim, num_attention_heads=4))


def test_berts_output_says_the_same_when_it_was_adopted():
    own, fused = output_of().eval(), output_of().eval()
    fused.load_state_dict(own.state_dict())
    assert outputs.adopt(fused)
    states, residual = torch.randn(2, 5, 16), torch.randn(2, 5, 16)
    torch.testing.assert_close(fused(states, residual), own(states, residual))
    assert not torch.allclose(fused.train()(states, residual), own(states, residual))
    exact = (states.double(), residual.double())  # what the kernels cannot read goes BERT's own way
    torch.testing.assert_close(fused.double().eval()(*exact), own.double()(*exact))


@pytest.mark.parametrize("change", ["bias", "class", "part"])
def test_what_is_not_made_as_berts_output_is_left_alone(change: str):
    output = output_of()
    if change == "bias":
        output.LayerNorm = nn.LayerNorm(16, bias=False)
    elif change == "class":
        output.LayerNorm = nn.RMSNorm(16)
    else:
        output.adapter = nn.Linear(16, 16)
    own = type(output)
    assert not outputs.adopt(output)
    assert type(output) is own


def test_a_process_that_is_warm_compiles_nothing_more_to_train_in_bf16():
    compiled = [
        getattr(module, name)
        for module in (attention_kernels, dropping_kernels, gelu_kernels, mixing_kernels, residual_kernels)
        for name in ("forward", "backward", "forward_first", "backward_first", "drop")
        if hasattr(module, name)
    ]
    warm_up()
    known = [set(kernel.signatures) for kernel in compiled]
    unpadded, norm = unpadded_of([5, 20]), norm_of(48)
    qkv = torch.randn(rounded(25), 3, HEADS, 16).bfloat16().requires_grad_()
    attended = attend_qkv(qkv, unpadded, 0.3, 0.1)
    alone = attend_first(qkv[:2, 0], qkv[:, 1], qkv[:, 2], unpadded, 0.3, 0.1)
    found = residual_norm(gelu(attended.flatten(1)), torch.randn(rounded(25), 48, requires_grad=True), norm, 0.1)
    mixed = ScalarMix(1)(qkv.detach()[None, None])
    dropped = Dropout([0.1, 0.5], MemberRng([0, 1]))(mixed) + Dropout([0.1, 0.5], MemberRng([0, 0]))(mixed.bfloat16())
    (found.sum() + alone.sum() + mixed.sum() + dropped.sum()).backward()
    assert [set(kernel.signatures) for kernel in compiled] == known
