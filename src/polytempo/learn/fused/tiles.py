"""The two register tiles that all products are made of: what a BLAS has inside, without its packing and threads, which
cost more than they bring for one client's small matrices. Both add to a matrix of floats:

    outer:  c[i, v] = base[i, v] + alpha * sum_sk a[i, s, k] * x[s, k, v]         v: vectors
    inner:  c[i, t] = base[i] + alpha * sum_v a[i, v] . x[t, v]                   v: vectors

A row i, a column t, a segment s and a step k are each a stride further, so that the same tile multiplies matrices and
convolves images where they lie: a segment is then a row of the kernel or of the image.
"""

from functools import partial
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from polytempo.learn.fused.compiling import LANES, WIDE, kernel
from polytempo.learn.fused.vector import F32, I64, INT, NUMBERS, Emitter, call_shared, data_of, for_size

OUTER_VECTORS = 2
OUTER_ROWS = 12
"""Of one vector. Their sums, the vector and a factor fill the 16 registers of AVX2."""
OUTER_ROWS_OF_TWO = 12 if WIDE else 6
"""Of two vectors: AVX-512 has 32 registers."""
INNER_ROWS, INNER_COLUMNS = (4, 5) if WIDE else (4, 3)
COLUMNS_AT_ONCE = 30
"""Of an inner product: that many samples stay in the second cache while they meet all rows of the weights."""


class Lines(NamedTuple):
    """Where a matrix lies."""

    numbers: Any
    begin: int
    row: int


class Terms(NamedTuple):
    """Where the terms of a sum lie: further by ``segment`` and ``step``."""

    numbers: Any
    begin: int
    segment: int
    step: int


@kernel
def add_outer(rows, vectors, c, base, alpha, a, a_row, x, segments, count):
    """``c`` and ``base`` are Lines, ``a`` and ``x`` Terms."""
    for v in range(0, vectors, OUTER_VECTORS):
        width = min(OUTER_VECTORS, vectors - v)
        tiles = -(-rows // (OUTER_ROWS if width == 1 else OUTER_ROWS_OF_TWO))
        for tile in range(tiles):  # of even size: 14 rows are 7 and 7, not 12 and 2
            i = tile * rows // tiles
            height = (tile + 1) * rows // tiles - i
            outer_tile(
                height, width, c.numbers, c.begin + i * c.row + v * LANES, c.row,
                base.numbers, base.begin + i * base.row + v * LANES, base.row, alpha,
                a.numbers, a.begin + i * a_row, a_row, a.segment, a.step,
                x.numbers, x.begin + v * LANES, x.segment, x.step, segments, count,
            )  # fmt: skip


@kernel
def add_inner(rows, columns, c, c_column, base, alpha, a, x, count):
    """All are Lines; those of ``x`` are the columns of ``c``. ``base`` is one number per row."""
    tiles = -(-rows // INNER_ROWS)
    for first in range(0, columns, COLUMNS_AT_ONCE):
        last = min(first + COLUMNS_AT_ONCE, columns)
        across = -(-(last - first) // INNER_COLUMNS)
        for tile in range(tiles):
            i = tile * rows // tiles
            height = (tile + 1) * rows // tiles - i
            for part in range(across):
                t = first + part * (last - first) // across
                width = first + (part + 1) * (last - first) // across - t
                inner_tile(
                    height, width, c.numbers, c.begin + i * c.row + t * c_column, c.row, c_column,
                    base.numbers, base.begin + i * base.row, base.row, alpha,
                    a.numbers, a.begin + i * a.row, a.row, x.numbers, x.begin + t * x.row, x.row, count,
                )  # fmt: skip


@intrinsic
def outer_tile(  # type: ignore[no-untyped-def]
    typing, rows, vectors, c, c0, c_row, base, base0, base_row, alpha,
    a, a0, a_row, a_segment, a_step, x, x0, x_segment, x_step, segments, count,
):  # fmt: skip
    """For one vector or two, and at most so many rows."""
    signature = types.void(
        I64, I64, NUMBERS, I64, I64, NUMBERS, I64, I64, F32,
        NUMBERS, I64, I64, I64, I64, NUMBERS, I64, I64, I64, I64, I64,
    )  # fmt: skip

    def code(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        rows, vectors, c, c0, c_row, base, base0, base_row, alpha, a, a0, *a_strides, x, x0, xs, xk, s, k = values
        c, base, a, x = (
            builder.gep(data_of(context, builder, NUMBERS, array), [begin])
            for array, begin in ((c, c0), (base, base0), (a, a0), (x, x0))
        )
        size = builder.add(builder.mul(vectors, INT(OUTER_ROWS + 1)), rows)
        call_shared(
            builder, "outer_tile", [size, c, c_row, base, base_row, alpha, a, *a_strides, x, xs, xk, s, k], _outer
        )
        return context.get_dummy_value()

    return signature, code


def _outer(e: Emitter, arguments: list[ir.Value]) -> None:
    size, c, c_row, base, base_row, alpha, a, a_row, a_segment, a_step, x, x_segment, x_step, segments, count = (
        arguments
    )
    builder = e.builder

    def tile(rows: int, vectors: int) -> None:
        sums = e.zeros(rows, vectors)
        with e.loop(segments) as s:
            factors = [e.at(a, e.add(e.times(a_row, i), e.times(a_segment, s))) for i in range(rows)]
            begin = e.at(x, e.times(x_segment, s))
            with e.loop(count) as k:
                here = e.at(begin, e.times(k, x_step))
                parts = [e.load_vector(here, INT(v * LANES)) for v in range(vectors)]
                for i in range(rows):
                    factor = e.spread(e.load(factors[i], e.times(k, a_step)))
                    for v in range(vectors):
                        builder.store(e.multiply_add(factor, parts[v], builder.load(sums[i][v])), sums[i][v])
        scale = e.spread(alpha)
        for i in range(rows):
            for v in range(vectors):
                # one vector at a time, rows ascending: lanes beyond a row's end give the next row back unchanged
                before = e.load_vector(base, e.add(e.times(base_row, i), INT(v * LANES)))
                after = e.multiply_add(scale, builder.load(sums[i][v]), before)
                e.store_vector(after, c, e.add(e.times(c_row, i), INT(v * LANES)))

    sizes = {
        vectors * (OUTER_ROWS + 1) + rows: partial(tile, rows, vectors)
        for vectors, most in ((1, OUTER_ROWS), (2, OUTER_ROWS_OF_TWO))
        for rows in range(1, most + 1)
    }
    for_size(e, sizes, size)


@intrinsic
def inner_tile(  # type: ignore[no-untyped-def]
    typing, rows, columns, c, c0, c_row, c_column, base, base0, base_row, alpha, a, a0, a_row, x, x0, x_row, count,
):  # fmt: skip
    """For at most INNER_ROWS rows and INNER_COLUMNS columns."""
    signature = types.void(
        I64, I64, NUMBERS, I64, I64, I64, NUMBERS, I64, I64, F32, NUMBERS, I64, I64, NUMBERS, I64, I64, I64
    )

    def code(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        rows, columns, c, c0, c_row, c_column, base, base0, base_row, alpha, a, a0, a_row, x, x0, x_row, count = values
        c, base, a, x = (
            builder.gep(data_of(context, builder, NUMBERS, array), [begin])
            for array, begin in ((c, c0), (base, base0), (a, a0), (x, x0))
        )
        size = builder.add(builder.mul(columns, INT(INNER_ROWS + 1)), rows)
        arguments = [size, c, c_row, c_column, base, base_row, alpha, a, a_row, x, x_row, count]
        call_shared(builder, "inner_tile", arguments, _inner)
        return context.get_dummy_value()

    return signature, code


def _inner(e: Emitter, arguments: list[ir.Value]) -> None:
    size, c, c_row, c_column, base, base_row, alpha, a, a_row, x, x_row, count = arguments
    builder = e.builder

    def tile(rows: int, columns: int) -> None:
        sums = e.zeros(rows, columns)
        with e.loop(count) as v:
            here = e.times(v, LANES)
            parts = [e.load_vector(x, e.add(e.times(x_row, t), here)) for t in range(columns)]
            for i in range(rows):
                row = e.load_vector(a, e.add(e.times(a_row, i), here))
                for t in range(columns):
                    builder.store(e.multiply_add(row, parts[t], builder.load(sums[i][t])), sums[i][t])
        for i in range(rows):
            before = e.load(base, e.times(base_row, i))
            for t in range(columns):
                after = e.multiply_add(alpha, e.total(builder.load(sums[i][t])), before)
                e.store(after, c, e.add(e.times(c_row, i), e.times(c_column, t)))

    sizes = {
        columns * (INNER_ROWS + 1) + rows: partial(tile, rows, columns)
        for rows in range(1, INNER_ROWS + 1)
        for columns in range(1, INNER_COLUMNS + 1)
    }
    for_size(e, sizes, size)
