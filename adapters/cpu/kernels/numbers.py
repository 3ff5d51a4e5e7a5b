"""bf16 and float32 as the kernels read and write them: a bf16 tensor is an array of its bits, uint16."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import types
from numpy.typing import NDArray
from torch import Tensor

from meltpoint.adapters.cpu.kernels.compiling import inline, inlined

TYPES = (torch.bfloat16, torch.float32)
"""What the kernels read and write."""

_WORD = ir.IntType(32)
_FLOAT = ir.FloatType()


def array(tensor: Tensor) -> NDArray[Any]:
    """A contiguous tensor's memory as one flat array, bf16 as its bits.

    Raises:
        TypeError: neither bf16 nor float32, or not on the CPU.
    """
    flat = tensor.detach().view(-1)
    if flat.dtype == torch.bfloat16:
        flat = flat.view(torch.uint16)
    elif flat.dtype != torch.float32:
        raise TypeError(f"the kernels read bf16 and float32, not {flat.dtype}")
    return flat.numpy()


@inline
def to_float32(_: Any, number: Any) -> Any:
    """Bits of a bf16, or a float32 → float32."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if signature.args[0] == types.float32:
            return arguments[0]
        return builder.bitcast(builder.shl(builder.zext(arguments[0], _WORD), _WORD(16)), _FLOAT)

    return types.float32(number), build


@inline
def bits_of(_: Any, number: Any) -> Any:
    """A float32's bits, uint32."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _WORD)

    return types.uint32(types.float32), build


@inline
def of_bits(_: Any, bits: Any) -> Any:
    """The float32 of these bits, uint32."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], _FLOAT)

    return types.float32(types.uint32), build


@inline
def from_float32(_: Any, number: Any, into: Any) -> Any:
    """A float32 as an array holds it: itself, or the bits of the nearest bf16, ties to even; NaN stays NaN."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if signature.return_type == types.float32:
            return arguments[0]
        bits = builder.bitcast(arguments[0], _WORD)
        odd = builder.and_(builder.lshr(bits, _WORD(16)), _WORD(1))
        nearest = builder.lshr(builder.add(bits, builder.add(odd, _WORD(0x7FFF))), _WORD(16))
        is_nan = builder.icmp_unsigned(">", builder.and_(bits, _WORD(0x7FFFFFFF)), _WORD(0x7F800000))
        return builder.trunc(builder.select(is_nan, _WORD(0x7FC0), nearest), ir.IntType(16))

    return into.dtype(types.float32, into), build


_LOG2_E = np.float32(1.4426950408889634)
# ln 2 is the first less the second: n times the first has no bits to round (Cody & Waite 1980).
_LN_2 = np.float32(0.693359375), np.float32(2.12194440e-4)
_LOWEST = np.float32(-87.0)
_INTEGERS = np.float32(12582912.0)  # 1.5 · 2^23: added to a number, it leaves the nearest integer in the lowest bits
_TAYLOR = tuple(np.float32(1 / divisor) for divisor in (720, 120, 24, 6, 2, 1, 1))


@inlined
def exponential(x: Any) -> Any:
    """e^x for x ≤ 0, within 3 · 10^-7 of it; below -87 as at -87. NaN stays NaN."""
    number = _LOWEST if x < _LOWEST else x
    shifted = number * _LOG2_E + _INTEGERS
    count = shifted - _INTEGERS
    rest = number - count * _LN_2[0] + count * _LN_2[1]  # within ± ln 2 / 2
    power = _TAYLOR[0]
    power = power * rest + _TAYLOR[1]
    power = power * rest + _TAYLOR[2]
    power = power * rest + _TAYLOR[3]
    power = power * rest + _TAYLOR[4]
    power = power * rest + _TAYLOR[5]
    power = power * rest + _TAYLOR[6]
    return power * of_bits((bits_of(shifted) << np.uint32(23)) + np.uint32(0x3F800000))
