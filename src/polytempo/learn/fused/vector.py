"""The two register tiles all the arithmetic is made of, as LLVM vector code: what a BLAS has inside, without its
packing and threads, which cost more than they bring for one client's small matrices.

Both add to ``c``, in vectors of 8 floats. The integer table holds, from index ``spot`` on, where each vector of ``x``
begins, and from ``shift`` on, what is added to it, so that the same tile multiplies plain matrices (shift = row number
times row length) and convolves an image where it lies (spot = output position, shift = offset of a kernel element):

    outer:  c[i, v] += alpha * sum_k a[i, k] * x[spot[v] + shift[k]]          v: vectors
    inner:  c[i, t] += alpha * sum_v a[i, v] . x[spot[v] + shift[t]]          v: vectors, t: numbers
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 8
TILE_ROWS = 4
TILE_COLUMNS = 3
"""4 x 3 accumulators, 3 vectors and 1 factor fill the 16 registers of AVX2."""

FLOAT = ir.FloatType()
INT = ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)
CONTRACT = ("contract",)  # multiply and add may become one instruction where the CPU has it


class Emitter:
    """Short words for LLVM instructions on flat arrays and int64 indices."""

    def __init__(self, context: Any, builder: ir.IRBuilder) -> None:
        self.context = context
        self.builder = builder

    def data(self, array_type: Any, array: Any) -> ir.Value:
        return self.context.make_array(array_type)(self.context, self.builder, array).data

    def add(self, *terms: ir.Value) -> ir.Value:
        total = terms[0]
        for term in terms[1:]:
            total = self.builder.add(total, term)
        return total

    def times(self, a: ir.Value, b: ir.Value | int) -> ir.Value:
        return self.builder.mul(a, INT(b) if isinstance(b, int) else b)

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return self.builder.fadd(self.builder.fmul(a, b, flags=CONTRACT), c, flags=CONTRACT)

    def load(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        return self.builder.load(self.builder.gep(pointer, [index]))

    def store(self, value: ir.Value, pointer: ir.Value, index: ir.Value) -> None:
        self.builder.store(value, self.builder.gep(pointer, [index]))

    def load_vector(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        return self.builder.load(self._vector_pointer(pointer, index), align=4)

    def store_vector(self, value: ir.Value, pointer: ir.Value, index: ir.Value) -> None:
        self.builder.store(value, self._vector_pointer(pointer, index), align=4)

    def spread(self, number: ir.Value) -> ir.Value:
        """The number in every lane."""
        first = self.builder.insert_element(ir.Constant(VECTOR, ir.Undefined), number, ir.IntType(32)(0))
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
        return self.builder.shuffle_vector(first, ir.Constant(VECTOR, ir.Undefined), lanes)

    def total(self, vector: ir.Value) -> ir.Value:
        """The sum of the lanes: halves, quarters, eighths."""
        width = LANES
        while width > 1:
            width //= 2
            lanes = ir.VectorType(ir.IntType(32), width)
            low = self.builder.shuffle_vector(vector, vector, ir.Constant(lanes, list(range(width))))
            high = self.builder.shuffle_vector(vector, vector, ir.Constant(lanes, list(range(width, 2 * width))))
            vector = self.builder.fadd(low, high)
        return self.builder.extract_element(vector, ir.IntType(32)(0))

    def accumulators(self, rows: int, columns: int) -> list[list[ir.Value]]:
        zero = ir.Constant(VECTOR, [0.0] * LANES)
        grid = [[cgutils.alloca_once(self.builder, VECTOR) for _ in range(columns)] for _ in range(rows)]
        for row in grid:
            for accumulator in row:
                self.builder.store(zero, accumulator)
        return grid

    @contextmanager
    def loop(self, count: ir.Value) -> Iterator[ir.Value]:
        """Not unrolled: the accumulators of two rounds would not fit into the registers."""
        builder = self.builder
        before = builder.block
        body, after = (builder.append_basic_block(name) for name in ("tile.body", "tile.after"))
        builder.cbranch(builder.icmp_signed(">", count, INT(0)), body, after)
        builder.position_at_end(body)
        index = builder.phi(INT)
        index.add_incoming(INT(0), before)
        yield index
        following = builder.add(index, INT(1))
        index.add_incoming(following, builder.block)
        back = builder.cbranch(builder.icmp_signed("<", following, count), body, after)
        back.set_metadata("llvm.loop", self._never_unrolled())
        builder.position_at_end(after)

    def _never_unrolled(self) -> ir.MDValue:
        module = self.builder.module
        wish = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
        node = ir.MDValue(module, [wish], name=str(len(module.metadata)))
        node.operands = (node, wish)  # a loop's metadata begins with itself
        return node

    def _vector_pointer(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        return self.builder.bitcast(self.builder.gep(pointer, [index]), VECTOR.as_pointer())


def for_every_size(e: Emitter, rows: ir.Value, columns: ir.Value, emit: Callable[[int, int], None]) -> None:
    """Straight-line code for each size a tile can have, the one that fits picked at run time."""
    for r in range(TILE_ROWS, 0, -1):
        for c in range(TILE_COLUMNS, 0, -1):
            fits = e.builder.and_(
                e.builder.icmp_signed("==", rows, INT(r)), e.builder.icmp_signed("==", columns, INT(c))
            )
            with e.builder.if_then(fits):
                emit(r, c)


NUMBERS = types.Array(types.float32, 1, "C")
INDICES = types.Array(types.int64, 1, "C")
I64 = types.int64


@intrinsic
def outer_tile(typing, rows, vectors, c, c0, c_row, alpha, a, a0, a_row, a_step, x, x0, table, spot, shift, count):  # type: ignore[no-untyped-def]
    """``c[c0 + i c_row + 8 v] += alpha sum_k a[a0 + i a_row + k a_step] x[x0 + table[spot + v] + table[shift + k]]``
    for i < rows <= 4, v < vectors <= 3, k < count."""
    signature = types.void(
        I64, I64, NUMBERS, I64, I64, types.float32, NUMBERS, I64, I64, I64, NUMBERS, I64, INDICES, I64, I64, I64
    )

    def code(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        e = Emitter(context, builder)
        rows, vectors, c, c0, c_row, alpha, a, a0, a_row, a_step, x, x0, table, spot, shift, count = values
        c, a, x, table = e.data(NUMBERS, c), e.data(NUMBERS, a), e.data(NUMBERS, x), e.data(INDICES, table)

        def emit(row_count: int, vector_count: int) -> None:
            sums = e.accumulators(row_count, vector_count)
            begins = [e.add(x0, e.load(table, e.add(spot, INT(v)))) for v in range(vector_count)]
            row_begins = [e.add(a0, e.times(a_row, i)) for i in range(row_count)]
            with e.loop(count) as k:
                moved = e.load(table, e.add(shift, k))
                columns = [e.load_vector(x, e.add(begin, moved)) for begin in begins]
                for i in range(row_count):
                    factor = e.spread(e.load(a, e.add(row_begins[i], e.times(k, a_step))))
                    for v in range(vector_count):
                        builder.store(e.multiply_add(factor, columns[v], builder.load(sums[i][v])), sums[i][v])
            scale = e.spread(alpha)
            for i in range(row_count):
                for v in range(vector_count):
                    # one vector at a time, rows ascending: lanes beyond a row's end give the next row back unchanged
                    at = e.add(c0, e.times(c_row, i), INT(LANES * v))
                    e.store_vector(e.multiply_add(scale, builder.load(sums[i][v]), e.load_vector(c, at)), c, at)

        for_every_size(e, rows, vectors, emit)
        return context.get_dummy_value()

    return signature, code


@intrinsic
def inner_tile(typing, rows, columns, c, c0, c_row, c_column, alpha, a, a0, a_row, x, x0, table, spot, shift, count):  # type: ignore[no-untyped-def]
    """``c[c0 + i c_row + t c_column] += alpha sum_v a[a0 + i a_row + 8 v] x[x0 + table[spot + v] + table[shift + t]]``
    for i < rows <= 4, t < columns <= 3, v < count."""
    signature = types.void(
        I64, I64, NUMBERS, I64, I64, I64, types.float32, NUMBERS, I64, I64, NUMBERS, I64, INDICES, I64, I64, I64
    )

    def code(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        e = Emitter(context, builder)
        rows, columns, c, c0, c_row, c_column, alpha, a, a0, a_row, x, x0, table, spot, shift, count = values
        c, a, x, table = e.data(NUMBERS, c), e.data(NUMBERS, a), e.data(NUMBERS, x), e.data(INDICES, table)

        def emit(row_count: int, column_count: int) -> None:
            sums = e.accumulators(row_count, column_count)
            row_begins = [e.add(a0, e.times(a_row, i)) for i in range(row_count)]
            begins = [e.add(x0, e.load(table, e.add(shift, INT(t)))) for t in range(column_count)]
            with e.loop(count) as v:
                here = e.load(table, e.add(spot, v))
                parts = [e.load_vector(x, e.add(begin, here)) for begin in begins]
                for i in range(row_count):
                    row = e.load_vector(a, e.add(row_begins[i], e.times(v, LANES)))
                    for t in range(column_count):
                        builder.store(e.multiply_add(row, parts[t], builder.load(sums[i][t])), sums[i][t])
            for i in range(row_count):
                for t in range(column_count):
                    at = e.add(c0, e.times(c_row, i), e.times(c_column, t))
                    e.store(e.multiply_add(alpha, e.total(builder.load(sums[i][t])), e.load(c, at)), c, at)

        for_every_size(e, rows, columns, emit)
        return context.get_dummy_value()

    return signature, code


@intrinsic
def copy_vector(typing, into, i, source, j):  # type: ignore[no-untyped-def]
    """``into[i:i+8] = source[j:j+8]``."""

    def code(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        e = Emitter(context, builder)
        into, i, source, j = values
        e.store_vector(e.load_vector(e.data(NUMBERS, source), j), e.data(NUMBERS, into), i)
        return context.get_dummy_value()

    return types.void(NUMBERS, I64, NUMBERS, I64), code


@intrinsic
def add_vector(typing, into, i, source, j):  # type: ignore[no-untyped-def]
    """``into[i:i+8] += source[j:j+8]``."""

    def code(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        e = Emitter(context, builder)
        into, i, source, j = values
        into = e.data(NUMBERS, into)
        e.store_vector(builder.fadd(e.load_vector(into, i), e.load_vector(e.data(NUMBERS, source), j)), into, i)
        return context.get_dummy_value()

    return types.void(NUMBERS, I64, NUMBERS, I64), code
