"""The compiled loops against what they stand for: torch in float64, with the very masks that they draw."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertSelfOutput

from meltpoint.adapters import residual_norm as residual_norms
from meltpoint.adapters.gelu import Gelu
from meltpoint.adapters.kernels import LANES, numbers
from meltpoint.adapters.kernels import attention as attention_kernels
from meltpoint.adapters.kernels import gelu as gelu_kernels
from meltpoint.adapters.kernels import residual_norm as residual_kernels
from meltpoint.adapters.kernels.dropping import Dropping, draw
from meltpoint.adapters.kernels.numbers import array, exponential, narrowed, widen
from meltpoint.adapters.kernels.threads import share_out
from meltpoint.adapters.kernels.tile import product
from meltpoint.adapters.kernels.warming import warm_up
from meltpoint.adapters.padding_free import Unpadded, places_of, rounded
from meltpoint.adapters.residual_norm import residual_norm
from meltpoint.adapters.unpadded_attention import attend_first, attend_qkv

ROOT = Path(__file__).resolve().parents[2]
HEADS, DIM = 3, 20  # a head's size that is no multiple of a vector's
LENGTHS = st.lists(st.integers(1, 70), min_size=1, max_size=5)
RATIOS = st.sampled_from([0.0, 0.1, 0.5])
SINGLE = {"atol": 2e-5, "rtol": 2e-5}


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# --- numbers ---


@numba.njit
def _copied(source, into):
    for place in range(source.shape[0]):
        into[place] = narrowed(widen(source[place]), into)


@numba.njit
def _exponentials(source, into):
    for place in range(source.shape[0]):
        into[place] = exponential(source[place])


@given(st.integers(0, 2**32 - 1))
def test_bf16_is_rounded_as_torch_rounds_it_whatever_the_bits(seed: int):
    given_ = torch.from_numpy(np.random.default_rng(seed).integers(0, 2**32, 64, np.uint32).view(np.float32))
    expected, found = given_.bfloat16(), torch.empty(64, dtype=torch.bfloat16)
    _copied(array(given_), array(found))
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    back = torch.empty(64)
    _copied(array(expected), array(back))
    torch.testing.assert_close(back, expected.float(), rtol=0, atol=0, equal_nan=True)


def test_special_numbers_keep_their_meaning_in_bf16():
    given_ = torch.tensor([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, 1e-45])
    found = torch.empty(8, dtype=torch.bfloat16)
    _copied(array(given_), array(found))
    torch.testing.assert_close(found, given_.bfloat16(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit()[4:6], torch.tensor([False, True]))


def test_the_exponential_is_right_to_float32s_last_bits():
    numbers_ = -np.logspace(-8, np.log10(87), 100_000).astype(np.float32)
    found = np.empty_like(numbers_)
    _exponentials(numbers_, found)
    np.testing.assert_allclose(found, np.exp(numbers_.astype(np.float64)), rtol=5e-7)
    ends = np.array([0.0, -1e30, np.nan], np.float32)
    _exponentials(ends, found[:3])
    assert found[0] == 1.0
    assert 0.0 <= found[1] < 1e-37
    assert np.isnan(found[2])


def test_what_the_kernels_cannot_read_is_said():
    with pytest.raises(TypeError, match=r"bf16 and float32, not torch\.float64"):
        array(torch.zeros(2, dtype=torch.float64))


# --- draws ---


def splitmix(seed: int, place: int) -> int:
    """Steele, Lea & Flood 2014, figure 16, in whole numbers: the `place`-th draw of a seed."""
    mask = 2**64 - 1
    state = (seed + (place + 1) * 0x9E3779B97F4A7C15) & mask
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & mask
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & mask
    return state ^ (state >> 31)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**40), st.integers(1, 40))
def test_draws_are_splitmix64s_from_any_place_on(seed: int, first: int, count: int):
    words = np.empty(count, np.uint64)
    draw(np.uint64(seed), first, words)
    assert words.tolist() == [splitmix(seed, first + place) for place in range(count)]


def test_the_published_first_draws_of_seed_0():
    words = np.empty(3, np.uint64)
    draw(np.uint64(0), 0, words)
    assert [hex(word) for word in words.tolist()] == ["0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f"]


@given(st.floats(0.01, 0.99), st.integers(0, 2**31))
@settings(max_examples=20)
def test_the_share_that_is_dropped_is_the_ratio_and_the_mean_stays(ratio: float, seed: int):
    torch.manual_seed(seed)
    dropping = Dropping.drawn(ratio)
    words = np.empty(50_000, np.uint64)
    draw(dropping.seed, 0, words)
    kept = (words.view(np.int16) >= dropping.level).mean()
    assert kept == pytest.approx(1 - ratio, abs=5 * (ratio * (1 - ratio) / 200_000) ** 0.5 + 2**-16)
    assert float(dropping.factor) * (1 - round(ratio * 2**16) / 2**16) == pytest.approx(1)


def test_the_seed_comes_from_torchs_generator_and_nothing_is_drawn_in_vain():
    torch.manual_seed(3)
    first, before = Dropping.drawn(0.1), torch.get_rng_state()
    assert Dropping.drawn(0.0).seed == 0
    assert torch.equal(torch.get_rng_state(), before)
    second = Dropping.drawn(0.1)
    torch.manual_seed(3)
    assert Dropping.drawn(0.1) == first != second


# --- products ---


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 50), st.booleans())
def test_a_small_product_is_numpys(fours: int, sixteens: int, steps: int, turned: bool):
    rows, columns, rng = 4 * fours, LANES * sixteens, np.random.default_rng(steps)
    left = rng.normal(size=(rows, steps)).astype(np.float32)
    right = rng.normal(size=(steps, columns)).astype(np.float32)
    found = np.full((rows, columns), np.nan, np.float32)
    given_ = np.ascontiguousarray(left.T) if turned else left
    strides = (1, rows) if turned else (steps, 1)
    product(given_.reshape(-1), *strides, right.reshape(-1), found.reshape(-1), rows, columns, steps)
    np.testing.assert_allclose(found, left.astype(np.float64) @ right, rtol=1e-4, atol=1e-4)


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
            place = qkv.shape[2] * int(unpadded.squares[row]) + head * length * lanes
            kept = draws_of(dropping, place // 4, length * lanes).view(length, lanes)[:, :length].T
            found[own, head] = (torch.softmax(query @ key.T * scale, -1) * kept) @ value
    return found


def same_gradients(found: Tensor, expected: Tensor, one: Tensor, other: Tensor, tolerance: dict[str, float]) -> None:
    torch.testing.assert_close(found.double(), expected, **tolerance)
    torch.manual_seed(1)
    slope = torch.randn(found.shape).to(found.dtype)
    (own,), (right,) = torch.autograd.grad(found, one, slope), torch.autograd.grad(expected, other, slope.double())
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
    # A norm over few numbers may divide by almost nothing: errors are as large as its slope.
    near = {"atol": 1e-3, "rtol": 1e-3} if dim < 4 else {"atol": 2e-4, "rtol": 2e-4}
    torch.testing.assert_close(found.double(), expected, **near)
    slope = torch.randn_like(found)
    own = torch.autograd.grad(found, [*made, norm.weight, norm.bias], slope)
    right = torch.autograd.grad(expected, exact, slope.double())
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
    slope = torch.randn_like(found)
    for own, right in zip(
        torch.autograd.grad(found, (one, other), slope), torch.autograd.grad(expected, (one, other), slope), strict=True
    ):
        assert own.dtype == right.dtype
        torch.testing.assert_close(own, right)


# --- GELU ---


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_gelu_is_the_exact_one_in_value_and_slope(dtype: torch.dtype):
    states = torch.linspace(-30, 30, 20_001).to(dtype).requires_grad_()
    exact = states.detach().double().requires_grad_()
    found, expected = Gelu()(states), functional.gelu(exact)
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
    found = Gelu()(states)
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


@pytest.mark.usefixtures("threads")
@given(st.integers(1, 100), st.integers(1, 5))
def test_every_row_is_shared_out_once(rows: int, count: int):
    torch.set_num_threads(count)
    seen: list[int] = []
    share_out(rows, lambda first, last: seen.extend(range(first, last)))
    assert sorted(seen) == list(range(rows))


@pytest.mark.usefixtures("threads")
def test_what_fails_in_a_thread_is_raised():
    torch.set_num_threads(2)
    with pytest.raises(ZeroDivisionError):
        share_out(8, lambda first, last: 1 // (first - first))


# --- taken up where it fits ---


def output_of(dim: int = 16) -> nn.Module:
    return BertSelfOutput(BertConfig(hidden_size=dim, num_attention_heads=4))


def test_berts_output_says_the_same_when_it_was_adopted():
    own, fused = output_of().eval(), output_of().eval()
    fused.load_state_dict(own.state_dict())
    assert residual_norms.adopt(fused)
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
    assert not residual_norms.adopt(output)
    assert type(output) is own


def test_the_kernels_read_what_they_say():
    assert [array(torch.zeros(1, dtype=dtype)).dtype.name for dtype in numbers.TYPES] == ["uint16", "float32"]


def test_where_no_file_can_be_written_each_process_compiles_for_itself(tmp_path: Path):
    package = tmp_path / "meltpoint"
    shutil.copytree(ROOT / "adapters" / "kernels", package / "adapters" / "kernels")
    for folder in (package, package / "adapters"):
        (folder / "__init__.py").touch()
    script = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"  # what numba finds on a read-only file system
        "import numpy as np\n"
        "from meltpoint.adapters.kernels.dropping import draw\n"
        "words = np.zeros(1, np.uint64)\n"
        "draw(np.uint64(0), 0, words)\n"
        "print(hex(words[0]))"
    )
    run = [sys.executable, "-P", "-c", script]
    found = subprocess.run(run, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert found.stdout.strip() == "0xe220a8397b1dcdaf", found.stderr


def test_a_process_that_is_warm_compiles_nothing_more_to_train_in_bf16():
    compiled = [
        getattr(module, name)
        for module in (attention_kernels, gelu_kernels, residual_kernels)
        for name in ("forward", "backward", "forward_first", "backward_first")
        if hasattr(module, name)
    ]
    warm_up()
    known = [set(kernel.signatures) for kernel in compiled]
    unpadded, norm = unpadded_of([5, 20]), norm_of(48)
    qkv = torch.randn(rounded(25), 3, HEADS, 16).bfloat16().requires_grad_()
    attended = attend_qkv(qkv, unpadded, 0.3, 0.1)
    alone = attend_first(qkv[:2, 0], qkv[:, 1], qkv[:, 2], unpadded, 0.3, 0.1)
    found = residual_norm(Gelu()(attended.flatten(1)), torch.randn(rounded(25), 48, requires_grad=True), norm, 0.1)
    (found.sum() + alone.sum()).backward()
    assert [set(kernel.signatures) for kernel in compiled] == known
