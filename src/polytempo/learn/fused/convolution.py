"""Convolutions over frames with the channels innermost, so that a window's rows are runs of numbers, whatever its
stride. Weights are packed anew in every step: by taps for the output and their own gradient, where vectors hold
filters; by filters for the input's gradient, where they hold what one row of a window sees.

Where filters fill less than half a vector, a vector holds several neighbouring columns of them (``s.together``): then
the window is wider, and each column's weights stand where it looks.
"""

from polytempo.learn.fused.compiling import LANES, ONE, ZERO, inlined, kernel
from polytempo.learn.fused.moving import add_times, fill, move
from polytempo.learn.fused.pooling import pool, unpool
from polytempo.learn.fused.tiles import OUTER_VECTORS, Lines, Terms, add_outer

AT_ONCE = OUTER_VECTORS * LANES


@kernel
def pack(s, w, packed):
    """The weights by taps and, where the input's gradient is wanted, by filters; the biases."""
    area = s.kernel_rows * s.kernel_columns
    fill(packed, s.by_tap, s.kernel_rows * s.wide_run * s.lanes, ZERO)
    for j in range(s.together):
        move(packed, s.packed_bias + j * s.filters, 1, w, s.bias, 1, s.filters)
        for c in range(s.channels):
            for a in range(area):
                move(packed, s.by_tap + packed_tap(s, a, c, j), 1, w, s.weights + c * area + a, s.taps, s.filters)
    if s.passes_back:
        for o in range(s.filters):
            for a in range(area):
                row, column = divmod(a, s.kernel_columns)
                to = s.by_filter + (o * s.kernel_rows + row) * s.whole_run + column * s.channels
                move(packed, to, 1, w, s.weights + o * s.taps + a, area, s.channels)


@kernel
def add_packed(s, packed, into, alpha):
    """Add alpha times the gradient, which lies as the weights by taps, and begin a new one."""
    area = s.kernel_rows * s.kernel_columns
    for j in range(1, s.together):
        add_times(packed, s.bias_gradient, 1, ONE, packed, s.bias_gradient + j * s.filters, 1, s.filters)
    add_times(into, s.bias, 1, alpha, packed, s.bias_gradient, 1, s.filters)
    for c in range(s.channels):
        for a in range(area):
            first = s.gradient + packed_tap(s, a, c, 0)
            for j in range(1, s.together):
                add_times(packed, first, 1, ONE, packed, s.gradient + packed_tap(s, a, c, j), 1, s.filters)
            add_times(into, s.weights + c * area + a, s.taps, alpha, packed, first, 1, s.filters)
    fill(packed, s.gradient, s.kernel_rows * s.wide_run * s.lanes, ZERO)
    fill(packed, s.bias_gradient, s.lanes, ZERO)


@inlined
def packed_tap(s, a, c, j):
    """Where weights by taps hold those of place ``a`` in the window and channel ``c``, for column ``j`` of those that
    share a vector."""
    row, column = divmod(a, s.kernel_columns)
    return (row * s.wide_run + column * s.channels + j * s.right + c) * s.lanes + j * s.filters


@inlined
def convolution_forward(s, m, batch):
    out_row = s.out_columns * s.filters
    across = s.together * s.filters
    for b in range(batch):
        # the last filters first: their lanes beyond the end are the first filters of the next place
        for v in range((s.lanes - 1) // AT_ONCE * AT_ONCE, -1, -AT_ONCE):
            vectors = min(OUTER_VECTORS, (s.lanes - v) // LANES)
            for first in range(0, s.kernel_rows, s.kernel_rows_at_once):
                for r in range(s.out_rows):
                    out = Lines(m.out, r * out_row + v, across)
                    before = out if first else Lines(m.packed, s.packed_bias + v, 0)
                    seen = Terms(m.frames, s.source + b * s.source_pitch + r * s.down + first * s.row, s.row, 1)
                    weights = Terms(
                        m.packed, s.by_tap + first * s.wide_run * s.lanes + v, s.wide_run * s.lanes, s.lanes
                    )
                    add_outer(
                        s.out_columns // s.together, vectors, out, before, ONE, seen, s.together * s.right, weights,
                        min(s.kernel_rows_at_once, s.kernel_rows - first), s.wide_run,
                    )  # fmt: skip
        pool(s, m, b)


@inlined
def convolution_backward(s, m, batch):
    """Add the gradient of the weights to the packed one, and that of the input to ``deltas``."""
    out_row = s.out_columns * s.filters
    across = s.together * s.filters
    for b in range(batch):
        unpool(s, m, b)
        begin = s.source + b * s.source_pitch
        output = Terms(m.out, 0, out_row, across)
        for i in range(s.kernel_rows):
            into = Lines(m.packed, s.gradient + i * s.wide_run * s.lanes, s.lanes)
            seen = Terms(m.frames, begin + i * s.row, s.down, s.together * s.right)
            add_outer(
                s.wide_run, s.lanes // LANES, into, into, ONE, seen, 1, output,
                s.out_rows, s.out_columns // s.together,
            )  # fmt: skip
        into = Lines(m.packed, s.bias_gradient, 0)
        add_outer(
            1, s.lanes // LANES, into, into, ONE, Terms(m.ones, 0, 0, 0), 0, output,
            s.out_rows, s.out_columns // s.together,
        )  # fmt: skip
        if not s.passes_back:
            continue
        # the rows of a tile are those of the image, whose windows do not overlap in the same columns; or there is one
        lines, places = (s.out_rows, s.out_columns) if s.out_rows > 1 else (s.out_columns, 1)
        line, down = (out_row, s.down) if s.out_rows > 1 else (s.filters, s.right)
        for i in range(s.kernel_rows):
            for v in range(0, s.whole_run, AT_ONCE):
                vectors = min(OUTER_VECTORS, (s.whole_run - v) // LANES)
                weights = Terms(m.packed, s.by_filter + i * s.whole_run + v, 0, s.kernel_rows * s.whole_run)
                for q in range(places):
                    into = Lines(m.deltas, begin + i * s.row + q * s.right + v, down)
                    output_here = Terms(m.out, q * s.filters, 0, 1)
                    add_outer(lines, vectors, into, into, ONE, output_here, line, weights, 1, s.filters)
