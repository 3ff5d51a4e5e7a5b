"""Each operation of `ops`: torch's functions and the CPU kernels compute the same; and what chooses between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from meltpoint.adapters import ops
from meltpoint.adapters.data.unpadding import Unpadded, places_of, rounded
from meltpoint.adapters.encoder import LayerGroup
from meltpoint.adapters.training.encoder_optimiser import KernelAdamW, encoder_adamw

Run = Callable[[], tuple[Tensor, list[Tensor]]]
"""An operation's result, and the leaves that it has gradients by."""

needs_kernels = pytest.mark.skipif(find_spec("meltpoint.adapters.cpu") is None, reason="adapters/cpu was deleted")
HEADS, DIM = 3, 16
NEAR = {torch.float32: {"atol": 2e-5, "rtol": 2e-4}, torch.bfloat16: {"atol": 0.05, "rtol": 0.03}}
TYPES = st.sampled_from([torch.float32, torch.bfloat16])
LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=5)


def unpadded_of(lengths: list[int]) -> Unpadded:
    return Unpadded(*places_of(np.array(lengths)))


def outcome(run: Run, kernels: bool) -> list[Tensor]:
    """The result, and the gradients of a sum that tells its elements apart, in float32."""
    with ops.overridden(kernels):
        found, leaves = run()
        weight = torch.linspace(-1, 1, found.numel()).view_as(found)
        gradients = torch.autograd.grad((found.float() * weight).sum(), leaves)
    return [one.detach().float() for one in (found, *gradients)]


def assert_same(run: Run, dtype: torch.dtype) -> None:
    for plain, kernel in zip(outcome(run, False), outcome(run, True), strict=True):
        torch.testing.assert_close(plain, kernel, **NEAR[dtype])


def leaf(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return made.to(dtype).requires_grad_()


# --- each operation twice ---


@given(batch=st.integers(1, 3), pieces=st.integers(1, 40), dtype=TYPES, masked=st.booleans())
def test_attention_of_padded_rows(batch: int, pieces: int, dtype: torch.dtype, masked: bool):
    states = leaf(3, batch, HEADS, pieces, DIM, dtype=dtype)
    lengths = torch.arange(batch) % pieces + 1
    mask = (torch.arange(pieces) < lengths[:, None])[:, None, None].expand(-1, 1, pieces, -1) if masked else None
    query, key, value = states
    assert_same(lambda: (ops.attend(query, key, value, mask, 0.25, 0.0), [states]), dtype)


@given(LENGTHS, TYPES)
def test_attention_without_padding(lengths: list[int], dtype: torch.dtype):
    unpadded, real = unpadded_of(lengths), sum(lengths)
    states = leaf(3, rounded(real), HEADS, DIM, dtype=dtype)
    assert_same(lambda: (ops.attend_unpadded(*states, unpadded, 0.25, 0.0)[:real], [states]), dtype)


@given(LENGTHS)
def test_attention_of_states_to_themselves(lengths: list[int]):
    unpadded, real = unpadded_of(lengths), sum(lengths)
    states, layers = leaf(rounded(real), HEADS * DIM), [nn.Linear(HEADS * DIM, HEADS * DIM) for _ in range(3)]
    read = [states, *(parameter for layer in layers for parameter in layer.parameters())]
    assert_same(lambda: (ops.self_attend(states, layers, HEADS, unpadded, 0.25, 0.0)[:real], read), torch.float32)


@given(LENGTHS, TYPES)
def test_attention_with_one_query_a_row(lengths: list[int], dtype: torch.dtype):
    unpadded, real = unpadded_of(lengths), sum(lengths)
    query = leaf(len(lengths), HEADS, DIM, dtype=dtype)
    states = leaf(2, rounded(real), HEADS, DIM, dtype=dtype)
    assert_same(lambda: (ops.attend_first(query, *states, unpadded, 0.25, 0.0), [query, states]), dtype)


@given(st.integers(1, 300), TYPES)
def test_gelu(count: int, dtype: torch.dtype):
    states = leaf(count, dtype=dtype)
    assert_same(lambda: (ops.gelu(states), [states]), dtype)


@given(lines=st.integers(1, 40), dim=st.integers(8, 50), dtype=TYPES)
def test_residual_and_norm(lines: int, dim: int, dtype: torch.dtype):
    states, residual, norm = leaf(lines, dim, dtype=dtype), leaf(lines, dim, seed=1), nn.LayerNorm(dim)
    read = [states, residual, norm.weight, norm.bias]
    assert_same(lambda: (ops.residual_norm(states, residual, norm, 0.0), read), dtype)


@given(layers=st.integers(1, 4), lanes=st.sampled_from([1, 3]), numbers=st.integers(1, 50), dtype=TYPES)
def test_the_mix_of_layers(layers: int, lanes: int, numbers: int, dtype: torch.dtype):
    states, weights = leaf(layers, lanes, 2, numbers, dtype=dtype).detach(), leaf(3, layers)
    assert_same(lambda: (ops.mix(states, weights), [weights]), torch.float32)


@given(lanes=st.sampled_from([1, 2]), numbers=st.integers(1, 9000), dtype=TYPES)
def test_the_dropout_of_members_is_the_same_to_the_bit(lanes: int, numbers: int, dtype: torch.dtype):
    states = leaf(lanes, numbers, dtype=dtype).detach()
    bits = torch.randint(-(2**15), 2**15, (2, numbers), dtype=torch.int16)
    found = []
    for kernels in (False, True):
        with ops.overridden(kernels):
            found.append(ops.drop_members(states, bits, [1, 0], [-(2**15), -26214], [1.0, 1 / 0.9]))
    assert torch.equal(*found)


@pytest.mark.parametrize("kernels", [False, True])
@pytest.mark.parametrize(
    "run",
    [
        lambda: ops.dropout(torch.ones(200_000), 0.3),
        lambda: ops.attend(*torch.ones(3, 40, 5, 32, 1), None, 1.0, 0.3),
        lambda: ops.attend_unpadded(*torch.ones(3, 704, 8, 1), unpadded_of([32] * 22), 1.0, 0.3)[:700],
        lambda: ops.attend_first(torch.ones(22, 99, 1), *torch.ones(2, 704, 99, 1), unpadded_of([32] * 22), 1.0, 0.3),
    ],
    ids=["dropout", "attend", "attend_unpadded", "attend_first"],
)
def test_dropout_acts_and_keeps_the_mean_either_way(run: Callable[[], Tensor], kernels: bool):
    torch.manual_seed(0)
    with ops.overridden(kernels):
        found = run()
    assert float(found.std()) > 0.05
    assert float(found.mean()) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("kernels", [False, True])
def test_the_residual_is_not_dropped_and_the_states_are(kernels: bool):
    norm = nn.LayerNorm(64)
    with ops.overridden(kernels):
        states, nothing = torch.randn(50, 64), torch.zeros(50, 64)
        assert torch.equal(*(ops.residual_norm(nothing, states, norm, 0.5) for _ in range(2)))
        assert not torch.equal(*(ops.residual_norm(states, nothing, norm, 0.5) for _ in range(2)))


@needs_kernels
@given(seed=st.integers(0, 99), factor=st.sampled_from([1.0, 0.25]))
def test_the_encoders_adamw(seed: int, factor: float):
    found = []
    for kernels in (False, True):
        torch.manual_seed(seed)
        layer = nn.Linear(17, 9)
        with ops.overridden(kernels):
            adam = encoder_adamw([LayerGroup("layer", tuple(layer.parameters()))], 0.3)
            assert isinstance(adam, KernelAdamW) is kernels
            norms = []
            for group in adam.param_groups:
                group["lr"] = 0.01
            for _ in range(4):
                layer(torch.randn(5, 17)).square().sum().backward()
                norms.append(adam.norm())
                adam.scale(torch.tensor(factor))
                adam.step()
                adam.zero_grad()
        found.append([torch.stack(norms), layer.weight.detach(), layer.bias.detach()])
    for plain, kernel in zip(*found, strict=True):
        torch.testing.assert_close(plain, kernel, atol=1e-6, rtol=1e-5)


# --- what chooses ---


@pytest.fixture
def gelus(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What the kernel of GELU was given."""
    monkeypatch.delenv(ops.SWITCH, raising=False)
    assert ops.status() == "on"
    given: list[Tensor] = []
    monkeypatch.setattr(ops.cpu, "gelu", lambda states: given.append(states) or states)
    return given


@needs_kernels
def test_a_kernel_serves_bf16_and_float32_on_a_cpu_and_nothing_else(gelus: list[Tensor]):
    for dtype in (torch.bfloat16, torch.float32, torch.float64, torch.float16):
        ops.gelu(torch.ones(3, dtype=dtype))
    ops.gelu(torch.ones(3, device="meta"))
    assert [(one.dtype, one.device.type) for one in gelus] == [(torch.bfloat16, "cpu"), (torch.float32, "cpu")]


@needs_kernels
@pytest.mark.parametrize("word", ["0", "off", "False", "no"])
def test_the_environment_turns_kernels_off(gelus: list[Tensor], monkeypatch: pytest.MonkeyPatch, word: str):
    monkeypatch.setenv("MELTPOINT_CPU_KERNELS", word)
    ops.gelu(torch.ones(3))
    assert (ops.status(), ops.version(), gelus) == ("off", "", [])
    with ops.overridden(True):
        assert ops.status() == "on"
    monkeypatch.setenv("MELTPOINT_CPU_KERNELS", "1")
    ops.gelu(torch.ones(3))
    assert (ops.status(), len(gelus)) == ("on", 1)
    assert ops.version()


@needs_kernels
def test_an_override_ends_with_its_block_also_after_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(ops.SWITCH, raising=False)
    seen = []

    def failing() -> None:
        with ops.overridden(False):
            seen.append(ops.status())
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert [*seen, ops.status()] == ["off", "on"]


@pytest.fixture
def undetected() -> Iterator[None]:
    """Detection begins again, before and after."""
    ops._is_installed.cache_clear()
    yield
    ops._is_installed.cache_clear()


@pytest.mark.usefixtures("undetected")
@pytest.mark.parametrize("name", ["numba", "llvmlite.binding", "meltpoint.adapters.cpu"])
def test_what_is_missing_is_not_installed(monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.delenv(ops.SWITCH, raising=False)
    importing_fails(monkeypatch, ModuleNotFoundError(f"No module named {name!r}", name=name))
    assert (ops.status(), ops.version()) == ("not installed", "")
    assert ops.adamw([nn.Parameter(torch.ones(2))], {}) is None


@pytest.mark.usefixtures("undetected")
@pytest.mark.parametrize("error", [ImportError("numba needs NumPy 2.5 or less"), ModuleNotFoundError(name="numpy.x")])
def test_what_is_installed_and_broken_is_no_silent_fallback(monkeypatch: pytest.MonkeyPatch, error: ImportError):
    monkeypatch.delenv(ops.SWITCH, raising=False)
    importing_fails(monkeypatch, error)
    with pytest.raises(type(error)):
        ops.gelu(torch.ones(3))
    monkeypatch.setenv(ops.SWITCH, "0")
    assert torch.equal(ops.gelu(torch.ones(3)), nn.functional.gelu(torch.ones(3)))


def importing_fails(monkeypatch: pytest.MonkeyPatch, error: ImportError) -> None:
    import builtins
    import sys

    own = builtins.__import__

    def failing(name: str, *more: Any) -> Any:
        if name.startswith("meltpoint.adapters.cpu"):
            raise error
        return own(name, *more)

    monkeypatch.delitem(sys.modules, "meltpoint.adapters.cpu.operations", raising=False)
    monkeypatch.setattr(builtins, "__import__", failing)


# --- training without kernels ---


@needs_kernels
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["feature_extraction", "fine_tuning", "stack_and_finetune"])
def test_a_model_of_each_mode_trains_without_kernels_to_nearly_the_same_losses(
    make_trainer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, mode: str, precision: str
):
    losses = []
    for kernels in (True, False):
        with ops.overridden(kernels), monkeypatch.context() as patch:
            if not kernels:
                patch.setattr(ops, "cpu", None)
            dropout = {} if mode == "feature_extraction" else {"encoder_dropout": 0.0}
            trainer = make_trainer(mode, precision=precision, dropout=0.0, learning_rate=1e-3, **dropout)
            losses.append([result.train_loss for result in trainer.results()])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3 if precision == "fp32" else 0.05)


@pytest.mark.parametrize("family", ["bert", "modernbert", "distilbert"])
def test_an_encoders_dropout_acts_without_kernels(load_tiny: Callable[..., Any], make_trainer: Any, family: str):
    losses = []
    with ops.overridden(False):
        for ratio in (0.0, 0.3, 0.3):
            trainer = make_trainer(encoder=load_tiny(family), encoder_dropout=ratio, dropout=0.0)
            losses.append([result.train_loss for result in trainer.results()])
    assert losses[0] != losses[1] == losses[2]
