"""Numbers on their way from one layout to another: loops that compiled numpy indexing would slow down by its care for
negative indices."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from polytempo.learn.fused.compiling import LANES, kernel
from polytempo.learn.fused.vector import F32, I64, NUMBERS, VECTOR, Emitter, call_shared, data_of


@kernel
def fill(numbers, begin, count, value):
    part = numbers[begin : begin + count]
    for i in range(count):
        part[i] = value


@intrinsic
def move(typing, into, to, to_step, source, at, at_step, count):  # type: ignore[no-untyped-def]
    """``into[to + i to_step] = source[at + i at_step]`` for i < count."""
    signature = types.void(NUMBERS, I64, I64, NUMBERS, I64, I64, I64)

    def code(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        into, to, to_step, source, at, at_step, count = values
        into = builder.gep(data_of(context, builder, NUMBERS, into), [to])
        source = builder.gep(data_of(context, builder, NUMBERS, source), [at])
        call_shared(builder, "move", [into, to_step, source, at_step, count], _move)
        return context.get_dummy_value()

    return signature, code


def _move(e: Emitter, arguments: list[ir.Value]) -> None:
    into, to_step, source, at_step, count = arguments
    with e.loop(count) as i:
        e.store(e.load(source, e.times(i, at_step)), into, e.times(i, to_step))


@intrinsic
def add_times(typing, into, to, to_step, alpha, source, at, at_step, count):  # type: ignore[no-untyped-def]
    """``into[to + i to_step] += alpha source[at + i at_step]`` for i < count."""
    signature = types.void(NUMBERS, I64, I64, F32, NUMBERS, I64, I64, I64)

    def code(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        into, to, to_step, alpha, source, at, at_step, count = values
        into = builder.gep(data_of(context, builder, NUMBERS, into), [to])
        source = builder.gep(data_of(context, builder, NUMBERS, source), [at])
        call_shared(builder, "add_times", [into, to_step, alpha, source, at_step, count], _add_times)
        return context.get_dummy_value()

    return signature, code


def _add_times(e: Emitter, arguments: list[ir.Value]) -> None:
    into, to_step, alpha, source, at_step, count = arguments
    with e.loop(count) as i:
        to = e.times(i, to_step)
        e.store(e.multiply_add(alpha, e.load(source, e.times(i, at_step)), e.load(into, to)), into, to)


@intrinsic
def rectify(typing, numbers, frames, begin, count):  # type: ignore[no-untyped-def]
    """Zero those numbers whose place in ``frames`` is not positive, up to a whole vector of them; NaN stays, as in
    torch."""
    signature = types.void(NUMBERS, NUMBERS, I64, I64)

    def code(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        numbers, frames, begin, count = values
        numbers, frames = (builder.gep(data_of(context, builder, NUMBERS, one), [begin]) for one in (numbers, frames))
        call_shared(builder, "rectify", [numbers, frames, count], _rectify)
        return context.get_dummy_value()

    return signature, code


def _rectify(e: Emitter, arguments: list[ir.Value]) -> None:
    numbers, frames, count = arguments
    zeros = ir.Constant(VECTOR, [0.0] * LANES)
    with e.vectors(count) as i:
        alive = e.builder.fcmp_unordered(">", e.load_vector(frames, i), zeros)
        e.store_vector(e.builder.select(alive, e.load_vector(numbers, i), zeros), numbers, i)
