"""AdamW in one pass over memory: the gradient's factor, the moments, the weights and their copy in bf16."""

from __future__ import annotations

from typing import Any

import numpy as np

from meltpoint.adapters.cpu.kernels.compiling import inlined, kernel, reduction
from meltpoint.adapters.cpu.kernels.numbers import from_float32, to_float32

_ZERO = np.float32(0)
_BLOCK = 4096


@reduction
def _block(gradient: Any) -> Any:
    total = _ZERO
    for place in range(gradient.shape[0]):
        total += to_float32(gradient[place]) * to_float32(gradient[place])
    return total


@kernel
def squares(gradient: Any) -> float:
    """The sum of a flat array's squares: blocks in float32, their sum in double precision."""
    total = 0.0
    for start in range(0, gradient.shape[0], _BLOCK):
        total += _block(gradient[start : min(start + _BLOCK, gradient.shape[0])])
    return total


@inlined
def _move(
    weights: Any, gradient: Any, first: Any, second: Any, factor: Any, kept: Any, take_first: Any, keep_second: Any,
    take_second: Any, size: Any, root: Any, epsilon: Any,
) -> None:  # fmt: skip
    for place in range(weights.shape[0]):
        grad = to_float32(gradient[place]) * factor
        moment = first[place] + (grad - first[place]) * take_first
        square = second[place] * keep_second + grad * grad * take_second
        first[place], second[place] = moment, square
        weights[place] = weights[place] * kept - size * moment / (np.sqrt(square) / root + epsilon)


@inlined
def _copy(weights: Any, rounded: Any) -> None:
    for place in range(rounded.shape[0]):
        rounded[place] = from_float32(weights[place], rounded)


@kernel
def step(
    weights: Any, gradient: Any, first: Any, second: Any, rounded: Any, factor: Any, kept: Any, take_first: Any,
    keep_second: Any, take_second: Any, size: Any, root: Any, epsilon: Any, begin: Any, end: Any,
) -> None:  # fmt: skip
    """One step of AdamW (Loshchilov & Hutter 2019, algorithm 2), of the numbers from `begin` up to `end`.

    Numbers without a word on their type are Python's, in double precision; the arrays' are computed with in float32.

    Args:
        weights, first, second: flat float32, changed: the weights and the moments of their gradients.
        gradient: flat bf16 or float32; it counts times `factor`.
        rounded: flat bf16, written: the new weights; empty where that is not wanted.
        kept: 1 - rate · decay, what weights are multiplied by.
        take_first, keep_second, take_second: 1 - β1, β2, 1 - β2.
        size: rate / (1 - β1^t); root: √(1 - β2^t).
    """
    factor, kept, take_first = np.float32(factor), np.float32(kept), np.float32(take_first)
    keep_second, take_second = np.float32(keep_second), np.float32(take_second)
    size, root, epsilon = np.float32(size), np.float32(root), np.float32(epsilon)
    for start in range(begin, end, _BLOCK):
        own = slice(start, min(start + _BLOCK, end))
        _move(weights[own], gradient[own], first[own], second[own], factor, kept, take_first, keep_second, take_second,
              size, root, epsilon)  # fmt: skip
        if rounded.shape[0] > 0:
            _copy(weights[own], rounded[own])
