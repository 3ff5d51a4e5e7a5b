"""All kernels once on next to nothing, in a process whose forks then have them compiled."""

from __future__ import annotations

import numpy as np

from meltpoint.adapters.kernels import LANES, adamw, attention, gelu, mixing, residual_norm
from meltpoint.adapters.kernels.dropping import LOWEST

_HEADS, _DIM, _PIECES = 1, 16, 4


def warm_up() -> None:
    """Compile, or read from the disk, what training in bf16 calls: a few seconds the first time, then 0.3.

    Without torch, whose own threads a fork would lose.
    """
    one, nothing = np.float32(1), (np.uint64(0), np.int16(LOWEST), np.float32(1))
    rows, squares = np.array([0, _PIECES]), np.array([0, _PIECES * LANES])
    order = np.zeros(1, np.int64)
    states, weights = np.zeros(3 * _PIECES * _DIM, np.uint16), np.zeros(_PIECES * LANES, np.uint16)
    out, found = np.zeros(_PIECES * _DIM, np.uint16), np.zeros_like(states)
    attention.forward(states, _HEADS, _DIM, rows, squares, one, *nothing, 0, 1, out, weights)
    attention.backward(out, states, _HEADS, _DIM, rows, squares, one, one, 0, 1, weights, found)
    parts = out.copy(), out.copy(), out.copy()
    attention.forward_first(*parts, _HEADS, _DIM, rows, order, one, *nothing, 0, 1, out, weights)
    found_parts = out.copy(), out.copy(), out.copy()
    attention.backward_first(out, *parts, _HEADS, _DIM, rows, order, one, one, 0, 1, weights, *found_parts)
    lines = [np.zeros(_PIECES * _DIM, np.float32) for _ in range(3)]
    norm, moments = [np.zeros(_DIM, np.float32) for _ in range(4)], np.zeros(2 * _PIECES, np.float32)
    residual_norm.forward(out, lines[0], *norm[:2], one, *nothing, 0, _PIECES, lines[1], moments, lines[2])
    residual_norm.backward(lines[0], lines[1], moments, norm[0], *nothing, 0, 1, out, lines[2], *norm[2:])
    gelu.forward(out, 0, 1, parts[0])
    gelu.backward(out, parts[0], 0, 1, parts[1])
    mixing.forward(out, 1, 1, one.reshape(1), 0, 1, lines[0])
    mixing.backward(lines[0], out, 1, 1, 0, 1, np.zeros(1))
    for gradient, rounded in ((out, parts[0]), (lines[0], out[:0])):
        adamw.squares(gradient)
        adamw.step(lines[0], gradient, lines[1], lines[2], rounded, *[1.0] * 8, 0, 1)
