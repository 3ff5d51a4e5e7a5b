"""Small matrices that stay in the processor's registers: products of 4 rows by 16 or 32 columns, 16 × 16 transposed."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from meltpoint.adapters.cpu.kernels import LANES
from meltpoint.adapters.cpu.kernels.compiling import inline, inlined

ROWS = 4
"""Rows come in multiples of this."""

_VECTOR = ir.VectorType(ir.FloatType(), LANES)
_WORD = ir.IntType(32)
_FUSED = ["contract"]


def _tile(vectors: int) -> Any:
    """A product of `ROWS` rows by so many vectors of columns, written for LLVM: numba itself knows no registers."""

    @inline
    def tile(
        _: Any, left: Any, left_at: Any, left_row: Any, left_step: Any, right: Any, right_at: Any, right_step: Any,
        into: Any, into_at: Any, into_row: Any, steps: Any,
    ) -> Any:  # fmt: skip
        size = types.intp
        signature = types.void(left, size, size, size, right, size, size, into, size, size, size)

        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            _, left_at, left_row, left_step, _, right_at, right_step, _, into_at, into_row, steps = arguments
            left, right, into = (
                cgutils.create_struct_proxy(signature.args[place])(context, builder, arguments[place]).data  # type: ignore[no-untyped-call]
                for place in (0, 4, 7)
            )
            number = left_at.type
            zero = ir.Constant(_VECTOR, [0.0] * LANES)
            places = [cgutils.alloca_once(builder, _VECTOR) for _ in range(ROWS * vectors)]  # type: ignore[no-untyped-call]
            sums = [places[row * vectors : (row + 1) * vectors] for row in range(ROWS)]
            for line in sums:
                for place in line:
                    builder.store(zero, place)

            def vector(base: Any, offset: Any, column: int) -> Any:
                at = builder.gep(base, [builder.add(offset, number(column * LANES))])
                return builder.bitcast(at, _VECTOR.as_pointer())

            with cgutils.for_range(builder, steps) as loop:
                offset = builder.add(right_at, builder.mul(loop.index, right_step))
                columns = [builder.load(vector(right, offset, column), align=4) for column in range(vectors)]
                start = builder.add(left_at, builder.mul(loop.index, left_step))
                for row, line in enumerate(sums):
                    own = builder.load(builder.gep(left, [builder.add(start, builder.mul(left_row, number(row)))]))
                    spread = _spread(builder, own)
                    for place, column in zip(line, columns, strict=True):
                        product = builder.fmul(spread, column, flags=_FUSED)
                        builder.store(builder.fadd(product, builder.load(place), flags=_FUSED), place)
            for row, line in enumerate(sums):
                offset = builder.add(into_at, builder.mul(into_row, number(row)))
                for column, place in enumerate(line):
                    builder.store(builder.load(place), vector(into, offset, column), align=4)
            return context.get_dummy_value()

        return signature, build

    return tile


def _spread(builder: Any, number: Any) -> Any:
    """One number in every lane."""
    empty = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(empty, number, _WORD(0))
    return builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(_WORD, LANES), [0] * LANES))


_narrow, _wide = _tile(1), _tile(2)


@inlined
def product(
    left: Any, left_row: Any, left_step: Any, right: Any, into: Any, rows: Any, columns: Any, steps: Any
) -> None:
    """into[i, j] = Σ_k left[i · left_row + k · left_step] · right[k, j], all float32 in flat arrays.

    Args:
        left_row, left_step: how far apart the left one's rows and columns lie; swapped, it is transposed.
        right: (steps, columns); into: (rows, columns).
        rows: a multiple of `ROWS`, columns: of `LANES`.
    """
    for row in range(0, rows, ROWS):
        column = 0
        while column + 2 * LANES <= columns:
            _wide(left, row * left_row, left_row, left_step, right, column, columns,
                  into, row * columns + column, columns, steps)  # fmt: skip
            column += 2 * LANES
        if column < columns:
            _narrow(left, row * left_row, left_row, left_step, right, column, columns,
                    into, row * columns + column, columns, steps)  # fmt: skip


@inline
def transpose(_: Any, source: Any, at: Any, step: Any, into: Any, into_at: Any, into_step: Any) -> Any:
    """`LANES` × `LANES` numbers of float32, transposed; source's rows lie `step` apart, into's `into_step`."""
    size = types.intp

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, at, step, into, into_at, into_step = arguments
        source, into = (
            cgutils.create_struct_proxy(signature.args[place])(context, builder, arguments[place]).data  # type: ignore[no-untyped-call]
            for place in (0, 3)
        )

        def line(base: Any, first: Any, step: Any, row: int) -> Any:
            offset = builder.add(first, builder.mul(step, first.type(row)))
            return builder.bitcast(builder.gep(base, [offset]), _VECTOR.as_pointer())

        rows = [builder.load(line(source, at, step, row), align=4) for row in range(LANES)]
        for _ in range(LANES.bit_length() - 1):
            halves = zip(rows[: LANES // 2], rows[LANES // 2 :], strict=True)
            rows = [_zipped(builder, one, other, begin) for one, other in halves for begin in (0, LANES // 2)]
        for number, row in enumerate(rows):
            builder.store(row, line(into, into_at, into_step, number), align=4)
        return context.get_dummy_value()

    return types.void(source, size, size, into, size, size), build


def _zipped(builder: Any, one: Any, other: Any, begin: int) -> Any:
    """Half of two vectors from a lane on, by turns."""
    lanes = [lane + which * LANES for lane in range(begin, begin + LANES // 2) for which in (0, 1)]
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(_WORD, LANES), lanes))
