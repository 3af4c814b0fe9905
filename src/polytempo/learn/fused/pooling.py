"""From a convolution's output to the next stage's frame, and back: activation and the maximum of windows that do not
overlap (1 x 1 where nothing is pooled). A vector holds channels of one place. Its lanes beyond the last channel run
into the place behind, which is written after it."""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from polytempo.learn.fused.compiling import LANES, ZERO, kernel
from polytempo.learn.fused.moving import fill
from polytempo.learn.fused.vector import (
    F32,
    I64,
    INT,
    INTEGERS,
    LANE_INDEX,
    NUMBERS,
    VECTOR,
    WHOLE_VECTOR,
    Emitter,
    call_shared,
    data_of,
)

NO_FLOOR = np.float32(-np.inf)


@kernel
def pool(s, m, b):
    """The largest of each window (the first of equals), and which it was."""
    floor = ZERO if s.relu else NO_FLOOR
    out_row = s.out_columns * s.filters
    for r in range(s.rows):
        to = s.target + b * s.target_pitch + r * s.target_row
        won = s.winners + (b * s.rows + r) * s.columns * s.filters
        pool_row(
            m.out, r * s.pool_rows * out_row, out_row, s.filters, s.pool_rows, s.pool_columns, s.columns, floor,
            m.frames, to, s.target_step, m.winners, won,
        )  # fmt: skip
        fill(m.frames, to + (s.columns - 1) * s.target_step + s.filters, LANES, ZERO)


@kernel
def unpool(s, m, b):
    """The gradient of a sample's whole output: zero but for the winners of live windows."""
    floor = ZERO if s.relu else NO_FLOOR
    out_row = s.out_columns * s.filters
    for r in range(s.rows):
        to = s.target + b * s.target_pitch + r * s.target_row
        won = s.winners + (b * s.rows + r) * s.columns * s.filters
        for i in range(s.pool_rows):
            begin = (r * s.pool_rows + i) * out_row
            unpool_row(
                m.out, begin, s.filters, s.pool_columns, i * s.pool_columns, s.columns, floor,
                m.deltas, m.frames, to, s.target_step, m.winners, won,
            )  # fmt: skip
            done = s.columns * s.pool_columns * s.filters
            fill(m.out, begin + done, out_row - done, ZERO)
    done = s.rows * s.pool_rows * out_row
    fill(m.out, done, s.out_rows * out_row - done, ZERO)


@intrinsic
def pool_row(  # type: ignore[no-untyped-def]
    typing, out, at, out_row, filters, rows, columns, count, floor, into, to, step, winners, won
):
    """``count`` windows of ``rows`` x ``columns`` places side by side."""
    signature = types.void(NUMBERS, I64, I64, I64, I64, I64, I64, F32, NUMBERS, I64, I64, INTEGERS, I64)

    def code(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        out, at, out_row, filters, rows, columns, count, floor, into, to, step, winners, won = values
        arguments = [
            builder.gep(data_of(context, builder, NUMBERS, out), [at]), out_row, filters, rows, columns, count, floor,
            builder.gep(data_of(context, builder, NUMBERS, into), [to]), step,
            builder.gep(data_of(context, builder, INTEGERS, winners), [won]),
        ]  # fmt: skip
        call_shared(builder, "pool_row", arguments, _pool)
        return context.get_dummy_value()

    return signature, code


def _pool(e: Emitter, arguments: list[ir.Value]) -> None:
    out, out_row, filters, rows, columns, count, floor, into, step, winners = arguments
    builder = e.builder
    best, winner = cgutils.alloca_once(builder, VECTOR), cgutils.alloca_once(builder, WHOLE_VECTOR)
    floors = e.spread(floor)

    def compare(at: ir.Value, number: ir.Value) -> None:
        other = e.load_vector(out, at)
        larger = builder.fcmp_ordered(">", other, builder.load(best))
        builder.store(builder.select(larger, other, builder.load(best)), best)
        builder.store(builder.select(larger, e.spread(number), builder.load(winner)), winner)

    def windows(each: Callable[[ir.Value], None]) -> None:
        with e.loop(count) as q, e.vectors(filters) as o:
            begin = e.add(e.times(e.times(q, columns), filters), o)
            builder.store(e.load_vector(out, begin), best)
            builder.store(ir.Constant(WHOLE_VECTOR, [0] * LANES), winner)
            each(begin)
            above = builder.fcmp_unordered(">", builder.load(best), floors)  # NaN stays NaN, as in torch
            e.store_vector(builder.select(above, builder.load(best), floors), into, e.add(e.times(q, step), o))
            e.store_vector(builder.load(winner), winners, e.add(e.times(q, filters), o))

    def two_by_two(begin: ir.Value) -> None:
        below = e.add(begin, out_row)
        for number, at in enumerate((e.add(begin, filters), below, e.add(below, filters)), 1):
            compare(at, LANE_INDEX(number))

    def any_size(begin: ir.Value) -> None:
        with e.loop(rows) as r, e.loop(columns) as c:
            number = builder.trunc(e.add(e.times(r, columns), c), LANE_INDEX)
            compare(e.add(begin, e.times(r, out_row), e.times(c, filters)), number)

    both_two = builder.and_(builder.icmp_signed("==", rows, INT(2)), builder.icmp_signed("==", columns, INT(2)))
    with builder.if_else(both_two) as (usual, else_):
        with usual:
            windows(two_by_two)
        with else_:
            windows(any_size)


@intrinsic
def unpool_row(  # type: ignore[no-untyped-def]
    typing, out, at, filters, columns, number, count, floor, deltas, frames, to, step, winners, won
):
    """One row of ``count`` windows side by side; its first place has this number in each."""
    signature = types.void(NUMBERS, I64, I64, I64, I64, I64, F32, NUMBERS, NUMBERS, I64, I64, INTEGERS, I64)

    def code(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        out, at, filters, columns, number, count, floor, deltas, frames, to, step, winners, won = values
        arguments = [
            builder.gep(data_of(context, builder, NUMBERS, out), [at]), filters, columns, number, count, floor,
            builder.gep(data_of(context, builder, NUMBERS, deltas), [to]),
            builder.gep(data_of(context, builder, NUMBERS, frames), [to]), step,
            builder.gep(data_of(context, builder, INTEGERS, winners), [won]),
        ]  # fmt: skip
        call_shared(builder, "unpool_row", arguments, _unpool)
        return context.get_dummy_value()

    return signature, code


def _unpool(e: Emitter, arguments: list[ir.Value]) -> None:
    out, filters, columns, number, count, floor, deltas, largest, step, winners = arguments
    builder = e.builder
    nothing = ir.Constant(VECTOR, [0.0] * LANES)
    floors, first = e.spread(floor), e.spread(builder.trunc(number, LANE_INDEX))
    with e.loop(count) as q, e.loop(columns) as c, e.vectors(filters) as o:
        from_ = e.add(e.times(q, step), o)
        above = builder.fcmp_unordered(">", e.load_vector(largest, from_), floors)
        place = builder.add(first, e.spread(builder.trunc(c, LANE_INDEX)))
        won = builder.icmp_signed("==", e.load_vector(winners, e.add(e.times(q, filters), o)), place)
        value = builder.select(builder.and_(above, won), e.load_vector(deltas, from_), nothing)
        e.store_vector(value, out, e.add(e.times(e.add(e.times(q, columns), c), filters), o))
