"""Compiling ahead: every kernel called once on a few zeros, in a process whose forks then have them compiled."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np

from meltpoint.adapters.cpu.kernels import LANES, adamw, attention, compiling, dropping, gelu, mixing, residual_norm
from meltpoint.adapters.cpu.kernels.dropping import LOWEST

_HEADS, _DIM, _PIECES = 1, 16, 4
_ONE, _NOTHING_DROPPED = np.float32(1), (np.uint64(0), np.int16(LOWEST), np.float32(1))
_ROWS, _SQUARES, _ORDER = np.array([0, _PIECES]), np.array([0, _PIECES * LANES]), np.zeros(1, np.int64)
_BF16 = np.uint16


def warm_up() -> None:
    """Compile, or read from the disk, what training in bf16 calls: some seconds the first time, then 0.3.

    Without torch, whose own threads a fork would lose.
    """
    _attend(_BF16)
    _attend_backward()
    _norm(_BF16)
    _norm_backward()
    _act(_BF16)
    _act_backward(_BF16)
    _mix()
    _drop()
    _move()
    compiling.mark_used()


def compile_ahead() -> Sequence[int]:
    """Start two processes that compile half of the kernels each, if none is compiled yet.

    What reading an encoder in float32 calls is in it: it is compared with its own code when it is loaded. What such a
    process cannot do, the one that needs it does again, and says what is wrong.

    Returns:
        Their process ids, for `wait`.
    """
    folder: Any = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    if not folder or any(Path(folder).rglob("*.nbi")):
        return []
    compiling.forget_unused()
    return [_in_a_fork(half) for half in (_first_half, _second_half)]


def wait(processes: Sequence[int]) -> None:
    """Wait until these processes have ended."""
    for process in processes:
        with contextlib.suppress(ChildProcessError):  # reaped already
            os.waitpid(process, 0)


def _in_a_fork(half: Callable[[], None]) -> int:
    process = os.fork()
    if process == 0:
        failed = 1
        try:
            half()
            failed = 0
        finally:
            os._exit(failed)
    return process


def _first_half() -> None:
    _attend(_BF16)
    _attend(np.float32)


def _second_half() -> None:
    _attend_backward()
    for dtype in (_BF16, np.float32):
        _norm(dtype)
        _act(dtype)
        _act_backward(dtype)
    _norm_backward()
    _mix()
    _drop()
    _move()


def _states(dtype: Any, parts: int = 1) -> Any:
    """(parts, pieces, dim) flat, 0."""
    return np.zeros(parts * _PIECES * _DIM, dtype)


def _attend(dtype: Any) -> None:
    """Attention and [CLS]'s alone, forward."""
    weights = np.zeros(_PIECES * LANES, dtype)
    attention.forward(
        _states(dtype, 3), _HEADS, _DIM, _ROWS, _SQUARES, _ONE, *_NOTHING_DROPPED, 0, 1, _states(dtype), weights
    )
    parts = [_states(dtype) for _ in range(3)]
    attention.forward_first(*parts, _HEADS, _DIM, _ROWS, _ORDER, _ONE, *_NOTHING_DROPPED, 0, 1, _states(dtype), weights)


def _attend_backward() -> None:
    weights, states = np.zeros(_PIECES * LANES, _BF16), _states(_BF16, 3)
    attention.backward(
        _states(_BF16), states, _HEADS, _DIM, _ROWS, _SQUARES, _ONE, _ONE, 0, 1, weights, np.zeros_like(states)
    )
    parts, found = [[_states(_BF16) for _ in range(count)] for count in (4, 3)]
    attention.backward_first(*parts, _HEADS, _DIM, _ROWS, _ORDER, _ONE, _ONE, 0, 1, weights, *found)


def _lines() -> list[Any]:
    """Three arrays of as many numbers as states have, float32."""
    return [_states(np.float32) for _ in range(3)]


def _norm(dtype: Any) -> None:
    weight, bias, moments = np.zeros(_DIM, np.float32), np.zeros(_DIM, np.float32), np.zeros(2 * _PIECES, np.float32)
    residual, sums, normed = _lines()
    residual_norm.forward(
        _states(dtype), residual, weight, bias, _ONE, *_NOTHING_DROPPED, 0, _PIECES, sums, moments, normed
    )


def _norm_backward() -> None:
    weight, moments = np.zeros(_DIM, np.float32), np.zeros(2 * _PIECES, np.float32)
    gradient, sums, by_residual = _lines()
    by_weight, by_bias = np.zeros(_DIM, np.float32), np.zeros(_DIM, np.float32)
    residual_norm.backward(
        gradient, sums, moments, weight, *_NOTHING_DROPPED, 0, 1, _states(_BF16), by_residual, by_weight, by_bias
    )


def _act(dtype: Any) -> None:
    gelu.forward(_states(dtype), 0, 1, _states(dtype))


def _act_backward(dtype: Any) -> None:
    gelu.backward(_states(dtype), _states(dtype), 0, 1, _states(dtype))


def _mix() -> None:
    mixing.forward(_states(_BF16), 1, 1, np.ones(1, np.float32), 0, 1, _states(np.float32))
    mixing.backward(_states(np.float32), _states(_BF16), 1, 1, 0, 1, np.zeros(1))


def _drop() -> None:
    rows, level, factor = np.zeros(1, np.int64), np.zeros(1, np.int16), np.ones(1, np.float32)
    for dtype in (_BF16, np.float32):
        dropping.drop(_states(dtype), 1, _states(np.int16), rows, level, factor, 0, 1, _states(dtype))


def _move() -> None:
    """AdamW, of weights with a copy in bf16 and without."""
    for dtype, rounded in ((_BF16, _states(_BF16)), (np.float32, _states(_BF16)[:0])):
        gradient, (weights, first, second) = _states(dtype), _lines()
        adamw.squares(gradient)
        adamw.step(weights, gradient, first, second, rounded, *[1.0] * 8, 0, 1)
