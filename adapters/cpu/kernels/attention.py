"""Attention of rows that lie one after another, each by itself, a head at a time: all of it fits into the cache.

Scores are kept as (keys, queries), so that softmax adds up whole vectors and nothing is summed across their lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meltpoint.adapters.cpu.kernels import LANES
from meltpoint.adapters.cpu.kernels.compiling import inlined, kernel, reduction
from meltpoint.adapters.cpu.kernels.dropping import draw
from meltpoint.adapters.cpu.kernels.numbers import exponential, from_float32, to_float32
from meltpoint.adapters.cpu.kernels.tile import ROWS, product, transpose

_ZERO, _ONE = np.float32(0), np.float32(1)


@inlined
def wide(count: int) -> int:
    """Rounded up to whole vectors."""
    return (count + LANES - 1) // LANES * LANES


@inlined
def _longest(starts: Any, first: Any, last: Any) -> Any:
    """Pieces of the longest row from `first` up to `last`, in whole vectors."""
    longest = 0
    for row in range(first, last):
        longest = max(longest, starts[row + 1] - starts[row])
    return wide(longest)


@inlined
def _take(source: Any, start: Any, step: Any, dim: Any, rows: Any, into: Any, width: Any) -> None:
    """Vectors of bf16 or float32 that lie `step` apart → float32, (rows, width)."""
    for row in range(rows):
        line = source[start + row * step : start + row * step + dim]
        place = into[row * width : row * width + dim]
        for column in range(dim):
            place[column] = to_float32(line[column])


@inlined
def _transpose(rows: Any, width: Any, count: Any, into: Any, lanes: Any) -> None:
    """(count, width) → (width, lanes), 0 after the count; both sizes are whole vectors."""
    rows[count * width : lanes * width] = _ZERO
    for row in range(0, lanes, LANES):
        for column in range(0, width, LANES):
            transpose(rows, row * width + column, width, into, column * lanes + row, lanes)


@inlined
def _give(rows: Any, width: Any, dim: Any, count: Any, into: Any, start: Any, step: Any) -> None:
    """(count, width) of float32 → vectors that lie `step` apart."""
    for row in range(count):
        line = rows[row * width : row * width + dim]
        place = into[start + row * step : start + row * step + dim]
        for column in range(dim):
            place[column] = from_float32(line[column], place)


@inlined
def _softmax(scores: Any, highest: Any, total: Any) -> None:
    """Scores, (keys, queries), → their exponentials, and 1 / their sum over the keys."""
    lanes = highest.shape[0]
    for query in range(lanes):
        highest[query] = scores[query]  # a copy by slices takes a second to compile
    total[:] = _ZERO
    for key in range(1, scores.shape[0] // lanes):
        line = scores[key * lanes : (key + 1) * lanes]
        for query in range(lanes):
            highest[query] = highest[query] if line[query] < highest[query] else line[query]
    for key in range(scores.shape[0] // lanes):
        line = scores[key * lanes : (key + 1) * lanes]
        for query in range(lanes):
            power = exponential(line[query] - highest[query])
            line[query] = power
            total[query] += power
    for query in range(lanes):
        total[query] = _ONE / total[query]


@inlined
def _scale(weights: Any, factor: Any) -> None:
    """Exponentials → weights."""
    lanes = factor.shape[0]
    for key in range(weights.shape[0] // lanes):
        line = weights[key * lanes : (key + 1) * lanes]
        for query in range(lanes):
            line[query] *= factor[query]


@inlined
def _drop(weights: Any, draws: Any, level: Any, factor: Any, kept: Any) -> None:
    """Drop weights; `kept` holds them as they were for the backward pass, those that were dropped as negative."""
    for place in range(weights.shape[0]):
        weight = weights[place]
        stays = draws[place] >= level
        kept[place] = from_float32(weight if stays else -weight, kept)
        weights[place] = weight * factor if stays else _ZERO


@kernel
def forward(
    qkv: Any, heads: Any, dim: Any, starts: Any, squares: Any, scale: Any, seed: Any, level: Any, factor: Any,
    first: Any, last: Any, attended: Any, kept: Any,
) -> None:  # fmt: skip
    """Attention (Vaswani et al. 2017, eq. 1) of the rows from `first` up to `last`.

    Args:
        qkv: (pieces, 3, heads, dim) flat, bf16 or float32.
        starts: (rows + 1,) where each row's pieces begin.
        squares: (rows + 1,) where each row's weights begin, for one head: (keys, queries rounded up to whole vectors).
        seed, level, factor: what is dropped (`Dropping`).
        attended: (pieces, heads, dim) flat, written.
        kept: (heads · squares[-1],) of the same type, written for `backward`; empty where nothing is to be dropped and
            no gradient will be asked for.
    """
    longest, width = _longest(starts, first, last), wide(dim)
    key, value = np.zeros(longest * width, np.float32), np.zeros(longest * width, np.float32)
    queries, found = np.zeros(longest * width, np.float32), np.zeros(longest * width, np.float32)
    scores = np.zeros(longest * longest, np.float32)
    highest, total = np.zeros(longest, np.float32), np.zeros(longest, np.float32)
    words = np.zeros(longest * longest // 4, np.uint64)
    draws = words.view(np.int16)
    step = 3 * heads * dim
    for row in range(first, last):
        pieces = starts[row + 1] - starts[row]
        lanes, lines = wide(pieces), (pieces + ROWS - 1) // ROWS * ROWS
        size = pieces * lanes
        for head in range(heads):
            at = starts[row] * step + head * dim
            place = heads * squares[row] + head * size
            _take(qkv, at, step, dim, pieces, key, width)
            _transpose(key, width, pieces, queries, lanes)
            _take(qkv, at + heads * dim, step, dim, pieces, key, width)
            _take(qkv, at + 2 * heads * dim, step, dim, pieces, value, width)
            for index in range(pieces * width):
                key[index] *= scale
            product(key, width, 1, queries, scores, lines, lanes, dim)
            _softmax(scores[:size], highest[:lanes], total[:lanes])
            _scale(scores[:size], total[:lanes])
            if kept.shape[0] > 0:
                draw(seed, place // 4, words[: size // 4])
                _drop(scores[:size], draws[:size], level, factor, kept[place : place + size])
            product(scores, 1, lanes, value, found, lines, width, pieces)
            _give(found, width, dim, pieces, attended, (starts[row] * heads + head) * dim, heads * dim)


@inlined
def _softmax_backward(grads: Any, used: Any, kept: Any, scale: Any, factor: Any, total: Any) -> None:
    """Gradients by what the values were multiplied with, (keys, queries), → those by the unscaled scores.

    Args:
        used: written: the weights after dropout.
        kept: as `_drop` left them.
    """
    lanes = total.shape[0]
    total[:] = _ZERO
    for key in range(grads.shape[0] // lanes):
        line, own = grads[key * lanes : (key + 1) * lanes], kept[key * lanes : (key + 1) * lanes]
        dropped = used[key * lanes : (key + 1) * lanes]
        for query in range(lanes):
            weight = to_float32(own[query])
            multiplier = factor if weight > _ZERO else _ZERO
            dropped[query] = weight * multiplier
            grad = line[query] * multiplier
            line[query] = grad
            total[query] += grad * abs(weight)
    for key in range(grads.shape[0] // lanes):
        line, own = grads[key * lanes : (key + 1) * lanes], kept[key * lanes : (key + 1) * lanes]
        for query in range(lanes):
            line[query] = (line[query] - total[query]) * abs(to_float32(own[query])) * scale


@kernel
def backward(
    gradient: Any, qkv: Any, heads: Any, dim: Any, starts: Any, squares: Any, scale: Any, factor: Any,
    first: Any, last: Any, kept: Any, found: Any,
) -> None:  # fmt: skip
    """From `attended`'s gradient to that of `qkv`, for the rows from `first` up to `last`.

    Args:
        gradient: (pieces, heads, dim) flat.
        kept: as `forward` left it.
        found: (pieces, 3, heads, dim) flat, written.
    """
    longest, width = _longest(starts, first, last), wide(dim)
    query, key = np.zeros(longest * width, np.float32), np.zeros(longest * width, np.float32)
    value, given = np.zeros(longest * width, np.float32), np.zeros(longest * width, np.float32)
    turned, made = np.zeros(longest * width, np.float32), np.zeros(longest * width, np.float32)
    grads, used = np.zeros(longest * longest, np.float32), np.zeros(longest * longest, np.float32)
    total = np.zeros(longest, np.float32)
    step = 3 * heads * dim
    for row in range(first, last):
        pieces = starts[row + 1] - starts[row]
        lanes, lines = wide(pieces), (pieces + ROWS - 1) // ROWS * ROWS
        size = pieces * lanes
        for head in range(heads):
            at, own = starts[row] * step + head * dim, (starts[row] * heads + head) * dim
            place = heads * squares[row] + head * size
            _take(gradient, own, heads * dim, dim, pieces, given, width)
            _transpose(given, width, pieces, turned, lanes)
            _take(qkv, at, step, dim, pieces, query, width)
            _take(qkv, at + heads * dim, step, dim, pieces, key, width)
            _take(qkv, at + 2 * heads * dim, step, dim, pieces, value, width)
            product(value, width, 1, turned, grads, lines, lanes, dim)
            _softmax_backward(grads[:size], used[:size], kept[place : place + size], scale, factor, total[:lanes])
            product(grads, 1, lanes, key, made, lines, width, pieces)
            _give(made, width, dim, pieces, found, at, step)
            product(grads, lanes, 1, query, made, lines, width, pieces)
            _give(made, width, dim, pieces, found, at + heads * dim, step)
            product(used, lanes, 1, given, made, lines, width, pieces)
            _give(made, width, dim, pieces, found, at + 2 * heads * dim, step)


@reduction
def _product(one: Any, other: Any) -> Any:
    total = _ZERO
    for column in range(one.shape[0]):
        total += to_float32(one[column]) * to_float32(other[column])
    return total


@inlined
def _add(into: Any, line: Any, factor: Any) -> None:
    for column in range(into.shape[0]):
        into[column] += to_float32(line[column]) * factor


@inlined
def _put(line: Any, into: Any) -> None:
    for column in range(into.shape[0]):
        into[column] = from_float32(line[column], into)


@inlined
def _put_scaled(line: Any, factor: Any, into: Any) -> None:
    for column in range(into.shape[0]):
        into[column] = from_float32(to_float32(line[column]) * factor, into)


@kernel
def forward_first(
    query: Any, key: Any, value: Any, heads: Any, dim: Any, starts: Any, order: Any, scale: Any, seed: Any, level: Any,
    factor: Any, first: Any, last: Any, attended: Any, kept: Any,
) -> None:  # fmt: skip
    """Attention with one query a row, for the rows from `first` up to `last`.

    Args:
        query: (batch, heads, dim) flat; key, value: (pieces, heads, dim) flat.
        order: (rows,) which of the batch's rows each one is.
        attended: (batch, heads, dim) flat, written.
        kept: (pieces · heads,) flat, written for `backward_first`, those that were dropped as negative.
        starts, seed, level, factor: as in `forward`.
    """
    longest = _longest(starts, first, last)
    scores, found = np.zeros(longest, np.float32), np.zeros(dim, np.float32)
    words = np.zeros(longest // 4, np.uint64)
    draws = words.view(np.int16)
    for row in range(first, last):
        pieces = starts[row + 1] - starts[row]
        for head in range(heads):
            place = starts[row] * heads + head * pieces
            line = slice((order[row] * heads + head) * dim, (order[row] * heads + head + 1) * dim)
            for piece in range(pieces):
                at = ((starts[row] + piece) * heads + head) * dim
                scores[piece] = _product(query[line], key[at : at + dim]) * scale
            highest, total = np.max(scores[:pieces]), _ZERO
            for piece in range(pieces):
                scores[piece] = exponential(scores[piece] - highest)
                total += scores[piece]
            draw(seed, place, words[: (pieces + 3) // 4])
            found[:] = _ZERO
            for piece in range(pieces):
                at = ((starts[row] + piece) * heads + head) * dim
                weight, stays = scores[piece] / total, draws[piece] >= level
                kept[place + piece] = from_float32(weight if stays else -weight, kept)
                if stays:
                    _add(found, value[at : at + dim], weight * factor)
            _put(found, attended[line])


@kernel
def backward_first(
    gradient: Any, query: Any, key: Any, value: Any, heads: Any, dim: Any, starts: Any, order: Any, scale: Any,
    factor: Any, first: Any, last: Any, kept: Any, by_query: Any, by_key: Any, by_value: Any,
) -> None:  # fmt: skip
    """From `attended`'s gradient to the others', written, for the rows from `first` up to `last`."""
    longest = _longest(starts, first, last)
    grads, found = np.zeros(longest, np.float32), np.zeros(dim, np.float32)
    for row in range(first, last):
        pieces = starts[row + 1] - starts[row]
        for head in range(heads):
            place = starts[row] * heads + head * pieces
            line = slice((order[row] * heads + head) * dim, (order[row] * heads + head + 1) * dim)
            total = _ZERO
            for piece in range(pieces):
                at = ((starts[row] + piece) * heads + head) * dim
                weight = to_float32(kept[place + piece])
                multiplier = factor if weight > _ZERO else _ZERO
                grads[piece] = _product(gradient[line], value[at : at + dim]) * multiplier
                total += grads[piece] * abs(weight)
                _put_scaled(gradient[line], weight * multiplier, by_value[at : at + dim])
            found[:] = _ZERO
            for piece in range(pieces):
                at = ((starts[row] + piece) * heads + head) * dim
                grad = (grads[piece] - total) * abs(to_float32(kept[place + piece])) * scale
                _put_scaled(query[line], grad, by_key[at : at + dim])
                _add(found, key[at : at + dim], grad)
            _put(found, by_query[line])
