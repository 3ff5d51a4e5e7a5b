"""Dropout, the sum with the residual, and layer norm in one pass: a line at a time stays in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np

from meltpoint.adapters.cpu.kernels.compiling import inlined, kernel, reduction
from meltpoint.adapters.cpu.kernels.dropping import LOWEST, draw
from meltpoint.adapters.cpu.kernels.numbers import from_float32, to_float32

_ZERO, _ONE = np.float32(0), np.float32(1)

SHARE = 64
"""Lines whose gradients by the norm's weight and bias are added up together: the sum's order is the same for any number
of threads."""


@inlined
def _add(states: Any, residual: Any, draws: Any, level: Any, factor: Any, into: Any) -> None:
    for column in range(into.shape[0]):
        kept = to_float32(states[column]) * factor if draws[column] >= level else _ZERO
        into[column] = kept + to_float32(residual[column])


@inlined
def _plain_add(states: Any, residual: Any, into: Any) -> None:
    for column in range(into.shape[0]):
        into[column] = to_float32(states[column]) + to_float32(residual[column])


@reduction
def _mean(line: Any) -> Any:
    total = _ZERO
    for column in range(line.shape[0]):
        total += line[column]
    return total / np.float32(line.shape[0])


@reduction
def _variance(line: Any, mean: Any) -> Any:
    total = _ZERO
    for column in range(line.shape[0]):
        total += (line[column] - mean) * (line[column] - mean)
    return total / np.float32(line.shape[0])


@inlined
def _normalise(line: Any, mean: Any, inverse: Any, weight: Any, bias: Any, into: Any) -> None:
    for column in range(line.shape[0]):
        into[column] = from_float32((line[column] - mean) * inverse * weight[column] + bias[column], into)


@kernel
def forward(
    states: Any, residual: Any, weight: Any, bias: Any, epsilon: Any, seed: Any, level: Any, factor: Any,
    first: Any, last: Any, sums: Any, moments: Any, normed: Any,
) -> None:  # fmt: skip
    """Layer norm (Ba, Kiros & Hinton 2016, eq. 4) of dropout(states) + residual, lines from `first` up to `last`.

    Args:
        states, residual: (lines, dim) flat, bf16 or float32 each.
        weight, bias: (dim,) float32.
        epsilon: added to the variance, float32.
        seed, level, factor: what is dropped (`Dropping`).
        sums: (lines, dim) flat float32, written for `backward`: what is normalised; empty where no gradient will be
            asked for.
        moments: (lines, 2) flat float32, written: each line's mean, and 1 / its deviation.
        normed: (lines, dim) flat, written.
    """
    dim = weight.shape[0]
    words = np.zeros((dim + 3) // 4, np.uint64)
    draws = words.view(np.int16)
    own_sum = np.zeros(dim, np.float32)
    for line in range(first, last):
        own = slice(line * dim, (line + 1) * dim)
        total = sums[own] if sums.shape[0] > 0 else own_sum
        if level > LOWEST:
            draw(seed, line * words.shape[0], words)
            _add(states[own], residual[own], draws, level, factor, total)
        else:
            _plain_add(states[own], residual[own], total)
        mean = _mean(total)
        inverse = _ONE / np.sqrt(_variance(total, mean) + epsilon)
        moments[2 * line], moments[2 * line + 1] = mean, inverse
        _normalise(total, mean, inverse, weight, bias, normed[own])


@reduction
def _grads(
    gradient: Any, line: Any, mean: Any, inverse: Any, weight: Any, by_weight: Any, by_bias: Any, grads: Any,
    centred: Any,
) -> Any:  # fmt: skip
    """A line's gradient by what was normalised, but for its two means, which are returned."""
    total, product = _ZERO, _ZERO
    for column in range(line.shape[0]):
        grad, place = to_float32(gradient[column]), (line[column] - mean) * inverse
        by_weight[column] += grad * place
        by_bias[column] += grad
        grad *= weight[column]
        grads[column], centred[column] = grad, place
        total += grad
        product += grad * place
    count = np.float32(line.shape[0])
    return total / count, product / count


@inlined
def _spread(
    grads: Any, centred: Any, mean: Any, product: Any, inverse: Any, draws: Any, level: Any, factor: Any,
    by_residual: Any, by_states: Any,
) -> None:  # fmt: skip
    for column in range(grads.shape[0]):
        grad = (grads[column] - mean - centred[column] * product) * inverse
        by_residual[column] = from_float32(grad, by_residual)
        by_states[column] = from_float32(grad * factor if draws[column] >= level else _ZERO, by_states)


@kernel
def backward(
    gradient: Any, sums: Any, moments: Any, weight: Any, seed: Any, level: Any, factor: Any, first: Any, last: Any,
    by_states: Any, by_residual: Any, by_weight: Any, by_bias: Any,
) -> None:  # fmt: skip
    """From `normed`'s gradient to the others', for the shares of lines from `first` up to `last`.

    Args:
        gradient: (lines, dim) flat.
        sums, moments, seed, level, factor: as `forward` had them.
        first, last: shares of `SHARE` lines.
        by_states, by_residual: (lines, dim) flat, written.
        by_weight, by_bias: (shares, dim) flat float32, 0, written: each share's sum.
    """
    dim = weight.shape[0]
    words = np.zeros((dim + 3) // 4, np.uint64)
    draws = words.view(np.int16)
    grads, centred = np.zeros(dim, np.float32), np.zeros(dim, np.float32)
    for share in range(first, last):
        total = slice(share * dim, (share + 1) * dim)
        for line in range(share * SHARE, min((share + 1) * SHARE, moments.shape[0] // 2)):
            own = slice(line * dim, (line + 1) * dim)
            if level > LOWEST:
                draw(seed, line * words.shape[0], words)
            inverse = moments[2 * line + 1]
            mean, product = _grads(
                gradient[own], sums[own], moments[2 * line], inverse, weight, by_weight[total], by_bias[total], grads,
                centred,
            )  # fmt: skip
            _spread(grads, centred, mean, product, inverse, draws, level, factor, by_residual[own], by_states[own])
