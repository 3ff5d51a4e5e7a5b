"""Weighted sums of an encoder's layers: bf16 is widened where it is used, and read once for all members of a bundle."""

from __future__ import annotations

from typing import Any

import numpy as np

from meltpoint.adapters.cpu.kernels.compiling import inlined, kernel, reduction
from meltpoint.adapters.cpu.kernels.numbers import to_float32

_ZERO = np.float32(0)
_BLOCK = 1024
"""Numbers of every layer that are mixed for all members before the next ones: they stay in the first cache."""

SHARE = 64 * _BLOCK
"""Numbers whose gradients by the weights are added up together: the sum's order is the same for any number of threads.
"""


@inlined
def _add(line: Any, weight: Any, into: Any) -> None:
    for place in range(into.shape[0]):
        into[place] += to_float32(line[place]) * weight


@kernel
def forward(states: Any, lanes: Any, layers: Any, weights: Any, first: Any, last: Any, mixed: Any) -> None:
    """Mix the numbers from `first` up to `last`.

    Args:
        states: (layers, lanes, numbers) flat, bf16 or float32; where lanes is 1, all members mix the same.
        weights: (members, layers) flat float32.
        mixed: (members, numbers) flat float32, written.
    """
    members = weights.shape[0] // layers
    numbers = mixed.shape[0] // members
    for begin in range(first, last, _BLOCK):
        size = min(_BLOCK, last - begin)
        for member in range(members):
            into = mixed[member * numbers + begin : member * numbers + begin + size]
            into[:] = _ZERO
            for layer in range(layers):
                at = (layer * lanes + member % lanes) * numbers + begin
                _add(states[at : at + size], weights[member * layers + layer], into)


@reduction
def _product(one: Any, other: Any) -> Any:
    total = _ZERO
    for place in range(one.shape[0]):
        total += one[place] * to_float32(other[place])
    return total


@kernel
def backward(gradient: Any, states: Any, lanes: Any, layers: Any, first: Any, last: Any, grads: Any) -> None:
    """From the mixed numbers' gradient to that of the weights, for the shares of numbers from `first` up to `last`.

    Args:
        gradient: (members, numbers) flat float32.
        states: as `forward` had them.
        first, last: shares of `SHARE` numbers.
        grads: (shares, members, layers) flat float64, 0, written: each share's sum.
    """
    numbers = states.shape[0] // (layers * lanes)
    members = gradient.shape[0] // numbers
    for share in range(first, last):
        end = min((share + 1) * SHARE, numbers)
        for begin in range(share * SHARE, end, _BLOCK):
            size = min(_BLOCK, end - begin)
            for member in range(members):
                given = gradient[member * numbers + begin : member * numbers + begin + size]
                for layer in range(layers):
                    at = (layer * lanes + member % lanes) * numbers + begin
                    grads[(share * members + member) * layers + layer] += _product(given, states[at : at + size])
