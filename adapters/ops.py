"""The one interface to `cpu/`, the kernels for CPUs: each operation in plain torch, or by a kernel where one serves.

A kernel serves where numba and llvmlite are installed (`pip install "meltpoint[cpu]"`), `MELTPOINT_CPU_KERNELS` is not
0, and the tensors are bf16 or float32 on a CPU. Everywhere else, on every GPU too, torch's own functions compute the
same to within rounding; dropout draws other masks. Only this file imports `cpu/`, and when an operation first needs it.

    python -m meltpoint.adapters.ops

compiles the kernels for this processor, so that the first sweep need not.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from meltpoint.adapters.data.unpadding import Unpadded

if TYPE_CHECKING:
    from meltpoint.adapters.cpu import operations as cpu

Status = Literal["on", "off", "not installed"]

SWITCH = "MELTPOINT_CPU_KERNELS"
"""The environment variable that turns the kernels off: 0, off, false or no."""

LONGEST = 128
"""Rows of more subword tokens go to torch's blocked attention kernel where nothing is dropped: its memory does not grow
with their square."""

_TYPES = (torch.bfloat16, torch.float32)
_MASKED = -1e30  # finite, so that a row without any key gives no NaN
_override: bool | None = None


# --- the switch ---


def status() -> Status:
    """The state of the kernels in this process: on, turned off, or not installed."""
    asked = os.environ.get(SWITCH, "").lower() not in ("0", "off", "false", "no") if _override is None else _override
    if not asked:
        return "off"
    return "on" if _is_installed() else "not installed"


def version() -> str:
    """The version of numba, which compiles the kernels; "" where they do not serve."""
    return importlib.metadata.version("numba") if status() == "on" else ""


@contextmanager
def overridden(enabled: bool) -> Iterator[None]:
    """Turn the kernels on or off in this process, whatever the environment says; for tests and benchmarks."""
    global _override
    before, _override = _override, enabled
    try:
        yield
    finally:
        _override = before


@cache
def _is_installed() -> bool:
    """True if `cpu.operations` can be imported; imported once, as `cpu`.

    Raises:
        ImportError: all of it is installed, but cannot be imported.
    """
    global cpu
    try:
        from meltpoint.adapters.cpu import operations as cpu
    except ModuleNotFoundError as error:
        name = error.name or ""
        if name.partition(".")[0] in ("numba", "llvmlite") or name.startswith("meltpoint.adapters.cpu"):
            return False
        raise
    return True


def _serves(*tensors: Tensor) -> bool:
    """True if the kernels can read these tensors; `cpu` is imported then."""
    return all(one.device.type == "cpu" and one.dtype in _TYPES for one in tensors) and status() == "on"


# --- compiling ahead ---


def compile_ahead() -> Callable[[], None]:
    """Start two processes that compile the kernels, if none is compiled yet for this processor.

    Returns:
        Wait for them.
    """
    if status() != "on":
        return lambda: None
    processes = cpu.warming.compile_ahead()
    return lambda: cpu.warming.wait(processes)


def warm_up() -> None:
    """Have every kernel that training in bf16 calls compiled in this process, and so in its forks."""
    if status() == "on":
        cpu.warming.warm_up()


# --- attention ---


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, dropout: float) -> Tensor:
    """softmax(query · keyᵀ · scale), masked and dropped, · value (Vaswani et al. 2017, eq. 1).

    Args:
        query, key, value: (batch, heads, pieces, dim).
        mask: broadcasts to (batch, heads, pieces, pieces), True where attended.
        dropout: the share of attention weights that is dropped.

    Returns:
        (batch, heads, pieces, dim).
    """
    if (query.shape[2] <= LONGEST or dropout > 0.0) and _serves(query, key, value):
        return cpu.attend(query, key, value, mask, scale, dropout)
    return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scale)


def attend_unpadded(
    query: Tensor, key: Tensor, value: Tensor, unpadded: Unpadded, scale: float, dropout: float
) -> Tensor:
    """`attend` within each row of a batch without padding.

    Args:
        query, key, value: (rounded pieces, heads, dim).
        unpadded: which pieces make a row.

    Returns:
        (rounded pieces, heads, dim); what follows the real pieces is of no meaning.
    """
    if (unpadded.longest <= LONGEST or dropout > 0.0) and _serves(query, key, value):
        return cpu.attend_unpadded(query, key, value, unpadded, scale, dropout)
    rows = [unpadded.pad(states).transpose(1, 2) for states in (query, key, value)]  # (batch, heads, pieces, dim)
    attended = functional.scaled_dot_product_attention(
        rows[0], rows[1], rows[2], attn_mask=unpadded.key_mask(), dropout_p=dropout, scale=scale
    )
    return unpadded.unpad(attended.transpose(1, 2))


def self_attend(
    states: Tensor, projections: Sequence[nn.Linear], heads: int, unpadded: Unpadded, scale: float, dropout: float
) -> Tensor:
    """`attend_unpadded` of states to themselves.

    Args:
        states: (rounded pieces, dim).
        projections: the linear layers that make queries, keys and values of them; a kernel makes all by one product.

    Returns:
        (rounded pieces, heads · head's size).
    """
    if (unpadded.longest <= LONGEST or dropout > 0.0) and _serves(states):
        return cpu.self_attend(states, projections, heads, unpadded, scale, dropout)
    query, key, value = (layer(states).view(len(states), heads, -1) for layer in projections)
    return attend_unpadded(query, key, value, unpadded, scale, dropout).flatten(1)


def attend_first(query: Tensor, key: Tensor, value: Tensor, unpadded: Unpadded, scale: float, ratio: float) -> Tensor:
    """Attention with one query a row, its first piece's.

    Args:
        query: (batch, heads, dim), in the batch's order.
        key, value: (rounded pieces, heads, dim).
        unpadded: which pieces make a row.
        ratio: the share of attention weights that is dropped.

    Returns:
        (batch, heads, dim).
    """
    if _serves(query, key, value):
        return cpu.attend_first(query, key, value, unpadded, scale, ratio)
    keys, values = (unpadded.pad(states).transpose(1, 2) for states in (key, value))  # (batch, heads, pieces, dim)
    scores = query[:, :, None] @ keys.transpose(2, 3) * scale
    weights = torch.softmax(scores.masked_fill(~unpadded.key_mask(), _MASKED), -1)
    return (dropout(weights, ratio) @ values).squeeze(2)


# --- the rest of a layer ---


def gelu(states: Tensor) -> Tensor:
    """GELU with the exact error function (Hendrycks & Gimpel 2016), of any shape and of the same type."""
    return cpu.gelu(states) if _serves(states) else functional.gelu(states)


def residual_norm(states: Tensor, residual: Tensor, norm: nn.LayerNorm, ratio: float) -> Tensor:
    """norm(dropout(states) + residual).

    Args:
        states, residual: (…, dim).
        norm: over the last dimension, with weight and bias.
        ratio: the share of `states` that is dropped.

    Returns:
        (…, dim).
    """
    if norm.weight.dtype == torch.float32 and _serves(states, residual):
        return cpu.residual_norm(states, residual, norm, ratio)
    found: Tensor = norm(dropout(states, ratio) + residual)
    return found


def dropout(states: Tensor, ratio: float) -> Tensor:
    """Drop a share of the elements, and scale the others so that the mean stays.

    torch's default generator draws; a kernel needs 16 bits an element.
    """
    if ratio == 0.0:
        return states
    return cpu.drop(states, ratio) if _serves(states) else functional.dropout(states, ratio)


# --- trials side by side ---


def mix(stacked: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of layers (Peters et al. 2018, eq. 1), one a member.

    Args:
        stacked: (layers, T or 1, …) of any float type; where it is 1, all members mix the same.
        weights: (T, layers) float32.

    Returns:
        (T, …) float32.
    """
    if not stacked.requires_grad and _serves(stacked):
        mixed = cpu.mix(stacked, weights)
    else:
        lanes = stacked.float().flatten(2).transpose(0, 1)  # (lanes, layers, numbers)
        # A product a member, also where all mix the same states: a member's bits are then those that it has alone.
        mixed = torch.bmm(weights[:, None], lanes.expand(len(weights), -1, -1))
    return mixed.view(len(weights), *stacked.shape[2:])


def drop_members(
    states: Tensor, bits: Tensor, rows: Sequence[int], lowest: Sequence[int], factors: Sequence[float]
) -> Tensor:
    """Dropout by draws that are given: an element is kept where its draw is not below its member's level.

    Args:
        states: (T or 1, …).
        bits: (U, …) int16.
        rows, lowest, factors: each member's row of `bits`, its level, and what its kept elements are multiplied by.

    Returns:
        (T, …) of the states' type, rounded once.
    """
    found = torch.empty((len(rows), *states.shape[1:]), dtype=states.dtype, device=states.device)
    if _serves(states):
        cpu.drop_members(states, bits, rows, lowest, factors, found)
        return found
    for own, into, row, level, factor in zip(states.expand_as(found), found, rows, lowest, factors, strict=True):
        torch.mul(own, factor, out=into)  # a Python number, so that half precision is rounded once only
        into.mul_(bits[row] >= level)
    return found


# --- the optimiser ---


class AdamwKernel(Protocol):
    """AdamW's arithmetic in one pass over memory (`cpu.adamw`)."""

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients together."""

    def step(self, parameter: nn.Parameter, state: dict[str, Any], group: Mapping[str, Any], factor: float) -> None:
        """Move one parameter by its gradient times a factor."""


def adamw(parameters: Sequence[nn.Parameter], masters: Mapping[nn.Parameter, Tensor]) -> AdamwKernel | None:
    """The kernel that moves these parameters; None where torch's own optimiser has to.

    Args:
        masters: what is moved in the place of a bf16 parameter, which is then its rounded copy; float32.
    """
    return cpu.Adamw(masters) if _serves(*parameters) else None


if __name__ == "__main__":
    if status() == "on":
        compile_ahead()()
    else:
        print(f"The CPU kernels are {status()}: nothing to compile.")
