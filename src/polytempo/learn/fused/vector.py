"""LLVM vector code in short words: what numba's loops cannot be relied on to become."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from polytempo.learn.fused.compiling import LANES

FLOAT = ir.FloatType()
INT = ir.IntType(64)
LANE_INDEX = ir.IntType(32)
VECTOR = ir.VectorType(FLOAT, LANES)
WHOLE_VECTOR = ir.VectorType(LANE_INDEX, LANES)
"""Of integers as wide as floats."""
CONTRACT = ("contract",)  # multiply and add may become one instruction where the CPU has it

NUMBERS = types.Array(types.float32, 1, "C")
INTEGERS = types.Array(types.int32, 1, "C")
I64 = types.int64
F32 = types.float32


class Emitter:
    """Instructions on pointers and int64 indices."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    def add(self, *terms: ir.Value) -> ir.Value:
        total = terms[0]
        for term in terms[1:]:
            total = self.builder.add(total, term)
        return total

    def times(self, a: ir.Value, b: ir.Value | int) -> ir.Value:
        return self.builder.mul(a, INT(b) if isinstance(b, int) else b)

    def at(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        return self.builder.gep(pointer, [index])

    def load(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        return self.builder.load(self.at(pointer, index))

    def store(self, value: ir.Value, pointer: ir.Value, index: ir.Value) -> None:
        self.builder.store(value, self.at(pointer, index))

    def load_vector(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        return self.builder.load(self._vector_at(pointer, index), align=4)

    def store_vector(self, value: ir.Value, pointer: ir.Value, index: ir.Value) -> None:
        self.builder.store(value, self._vector_at(pointer, index), align=4)

    def multiply_add(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return self.builder.fadd(self.builder.fmul(a, b, flags=CONTRACT), c, flags=CONTRACT)

    def spread(self, number: ir.Value) -> ir.Value:
        """The number in every lane."""
        undefined = ir.Constant(ir.VectorType(number.type, LANES), ir.Undefined)
        first = self.builder.insert_element(undefined, number, LANE_INDEX(0))
        return self.builder.shuffle_vector(first, undefined, ir.Constant(WHOLE_VECTOR, [0] * LANES))

    def total(self, vector: ir.Value) -> ir.Value:
        """The sum of the lanes: halves, quarters, eighths."""
        width = LANES
        while width > 1:
            width //= 2
            lanes = ir.VectorType(LANE_INDEX, width)
            low = self.builder.shuffle_vector(vector, vector, ir.Constant(lanes, list(range(width))))
            high = self.builder.shuffle_vector(vector, vector, ir.Constant(lanes, list(range(width, 2 * width))))
            vector = self.builder.fadd(low, high)
        return self.builder.extract_element(vector, LANE_INDEX(0))

    def zeros(self, rows: int, columns: int) -> list[list[ir.Value]]:
        """Vectors in registers that loops may change."""
        grid = [[cgutils.alloca_once(self.builder, VECTOR) for _ in range(columns)] for _ in range(rows)]
        for row in grid:
            for vector in row:
                self.builder.store(ir.Constant(VECTOR, [0.0] * LANES), vector)
        return grid

    @contextmanager
    def loop(self, count: ir.Value) -> Iterator[ir.Value]:
        """Not unrolled: the accumulators of two rounds would not fit into the registers."""
        builder = self.builder
        before = builder.block
        body, after = (builder.append_basic_block(name) for name in ("round", "behind"))
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

    @contextmanager
    def vectors(self, count: ir.Value) -> Iterator[ir.Value]:
        """Where each vector of so many numbers begins."""
        whole = self.builder.sdiv(self.add(count, INT(LANES - 1)), INT(LANES))
        with self.loop(whole) as index:
            yield self.times(index, LANES)

    def _never_unrolled(self) -> ir.MDValue:
        module = self.builder.module
        wish = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
        node = ir.MDValue(module, [wish], name=str(len(module.metadata)))
        node.operands = (node, wish)  # a loop's metadata begins with itself
        return node

    def _vector_at(self, pointer: ir.Value, index: ir.Value) -> ir.Value:
        lane = WHOLE_VECTOR if pointer.type.pointee == LANE_INDEX else VECTOR
        return self.builder.bitcast(self.at(pointer, index), lane.as_pointer())


def data_of(context: Any, builder: ir.IRBuilder, array_type: Any, array: Any) -> ir.Value:
    """The pointer to an array's numbers."""
    return context.make_array(array_type)(context, builder, array).data


def call_shared(
    builder: ir.IRBuilder, name: str, arguments: list[ir.Value], emit: Callable[[Emitter, list[ir.Value]], None]
) -> None:
    """Call a function that every place of a module shares, made at the first call. Inlined, its code would be compiled
    once per call."""
    function = builder.module.globals.get(name)
    if function is None:
        kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
        function = ir.Function(builder.module, kind, name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        inside = ir.IRBuilder(function.append_basic_block("begin"))
        emit(Emitter(inside), list(function.args))
        inside.ret_void()
    builder.call(function, arguments)


def for_size(e: Emitter, sizes: Mapping[int, Callable[[], None]], size: ir.Value) -> None:
    """Straight-line code for each size that can be, the one that fits picked at run time."""
    builder = e.builder
    after = builder.append_basic_block("done")
    choice = builder.switch(size, after)
    for number, emit in sizes.items():
        block = builder.append_basic_block(f"size.{number}")
        choice.add_case(INT(number), block)
        builder.position_at_end(block)
        emit()
        builder.branch(after)
    builder.position_at_end(after)
