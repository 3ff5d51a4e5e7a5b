"""GELU with its exact error function; both passes need the same exponential."""

from __future__ import annotations

from typing import Any

import numpy as np

from meltpoint.adapters.cpu.kernels.compiling import inlined, kernel
from meltpoint.adapters.cpu.kernels.numbers import exponential, from_float32, to_float32

_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_ERF_STEP = np.float32(0.3275911 / 2**0.5)
_ERF = tuple(
    np.float32(term / 2) for term in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
)  # fmt: skip
_DENSITY = np.float32((2 * np.pi) ** -0.5)


@inlined
def _above(number: Any, power: Any) -> Any:
    """The normal distribution's share above |number|, where power = exp(-number² / 2), within 1.5 · 10^-7.

    Abramowitz & Stegun 1964, 7.1.26.
    """
    term = _ONE / (_ONE + _ERF_STEP * abs(number))
    total = _ERF[0] * term + _ERF[1]
    total = total * term + _ERF[2]
    total = total * term + _ERF[3]
    total = total * term + _ERF[4]
    return total * term * power


@kernel
def forward(states: Any, first: Any, last: Any, found: Any) -> None:
    """x · Φ(x) (Hendrycks & Gimpel 2016), of flat arrays of one type, from `first` up to `last`."""
    states, found = states[first:last], found[first:last]
    for place in range(states.shape[0]):
        number = to_float32(states[place])
        above = _above(number, exponential(-_HALF * number * number))
        found[place] = from_float32(number * (above if number < _ZERO else _ONE - above), found)


@kernel
def backward(gradient: Any, states: Any, first: Any, last: Any, found: Any) -> None:
    """From the result's gradient to that of `states`: times Φ(x) + x · φ(x)."""
    gradient, states, found = gradient[first:last], states[first:last], found[first:last]
    for place in range(states.shape[0]):
        number = to_float32(states[place])
        power = exponential(-_HALF * number * number)
        above = _above(number, power)
        grad = (above if number < _ZERO else _ONE - above) + number * power * _DENSITY
        found[place] = from_float32(to_float32(gradient[place]) * grad, found)
