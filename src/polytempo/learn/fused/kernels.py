"""Forward and backward passes of the stages, compiled. Names follow plan.py: a stage is one row of ``Plan.stages``.

``frames`` holds every stage's input, ``deltas`` the loss's gradient with respect to it, in the same layout. Numbers
between a sample's end and its pitch are zero in ``frames``, so that whole vectors can be read everywhere.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from polytempo.learn.fused.vector import (
    LANES,
    TILE_COLUMNS,
    TILE_ROWS,
    add_vector,
    copy_vector,
    inner_tile,
    outer_tile,
)

FILTERS_AT_ONCE = 8
"""In a dense layer's input gradient: so few rows of the weights that they stay in the first cache for all samples."""
VECTORS_AT_ONCE = 48
"""So many columns of a batch stay in the first cache while they are used for all rows of the weights."""
ZERO = np.float32(0)
ONE = np.float32(1)

SETTINGS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
"""Contract: a * b + c may be rounded once, as torch does it."""
kernel: Callable[..., Any] = njit(**SETTINGS)
inlined: Callable[..., Any] = njit(**SETTINGS, inline="always")
"""LLVM optimises a called function again with each of its callers: these are the callers of the large ones."""


@kernel
def add_outer(rows, vectors, c, c0, c_row, alpha, a, a0, a_row, a_step, x, x0, table, spot, shift, count):
    tiles = -(-rows // TILE_ROWS)
    for first in range(0, vectors, VECTORS_AT_ONCE):
        last = min(first + VECTORS_AT_ONCE, vectors)
        for tile in range(tiles):  # of even size: 6 rows are 3 and 3, not 4 and 2
            i = tile * rows // tiles
            height = (tile + 1) * rows // tiles - i
            for v in range(first, last, TILE_COLUMNS):
                outer_tile(
                    height, min(TILE_COLUMNS, last - v), c, c0 + i * c_row + v * LANES, c_row, alpha,
                    a, a0 + i * a_row, a_row, a_step, x, x0, table, spot + v, shift, count,
                )  # fmt: skip


@kernel
def add_inner(rows, columns, c, c0, c_row, c_column, alpha, a, a0, a_row, x, x0, table, spot, shift, count):
    tiles = -(-rows // TILE_ROWS)
    across = -(-columns // TILE_COLUMNS)
    for tile in range(tiles):
        i = tile * rows // tiles
        height = (tile + 1) * rows // tiles - i
        for step in range(across):
            t = step * columns // across
            width = (step + 1) * columns // across - t
            inner_tile(
                height, width, c, c0 + i * c_row + t * c_column, c_row, c_column, alpha,
                a, a0 + i * a_row, a_row, x, x0, table, spot, shift + t, count,
            )  # fmt: skip


@kernel
def fill(numbers, begin, count, value):
    part = numbers[begin : begin + count]
    for i in range(count):
        part[i] = value


@kernel
def copy(into, begin, source, first, count):
    part, origin = into[begin : begin + count], source[first : first + count]
    for i in range(count):
        part[i] = origin[i]


@kernel
def read_batch(s, x, size, rows, frames):
    """Copy the batch's samples into the first stage's frame."""
    for b in range(len(rows)):
        begin = s.frame + b * s.frame_pitch
        first = rows[b] * size
        if s.border == 0:
            copy(frames, begin, x, first, size)
            continue
        for c in range(s.inputs):
            for r in range(s.height):
                to = begin + c * s.plane + (r + s.border) * s.row + s.border
                copy(frames, to, x, first + (c * s.height + r) * s.width, s.width)


@inlined
def dense_forward(s, w, frames, table, batch):
    for b in range(batch):
        for o in range(s.filters):
            frames[s.next + b * s.next_pitch + o] = w[s.bias + o]
    vectors = (s.inputs + LANES - 1) // LANES
    add_inner(
        s.filters, batch, frames, s.next, 1, s.next_pitch, ONE,
        w, s.weights, s.inputs, frames, s.frame, table, s.spots, s.by_sample, vectors,
    )  # fmt: skip
    if s.relu:
        for b in range(batch):
            for i in range(s.next + b * s.next_pitch, s.next + b * s.next_pitch + s.filters):
                frames[i] = ZERO if frames[i] <= ZERO else frames[i]  # NaN stays NaN, as in torch


@inlined
def dense_backward(s, w, into, alpha, frames, deltas, table, batch, wants_input):
    """Add alpha times the gradient to ``into`` (the weights themselves, or a gradient vector)."""
    if s.relu:
        for b in range(batch):
            for i in range(s.next + b * s.next_pitch, s.next + b * s.next_pitch + s.filters):
                deltas[i] = ZERO if frames[i] <= ZERO else deltas[i]
    vectors = (s.inputs + LANES - 1) // LANES
    if wants_input:
        fill(deltas, s.frame, batch * s.frame_pitch, ZERO)
        for o in range(0, s.filters, FILTERS_AT_ONCE):
            add_outer(
                batch, vectors, deltas, s.frame, s.frame_pitch, ONE, deltas, s.next + o, s.next_pitch, 1,
                w, s.weights, table, s.spots, s.by_filter + o, min(FILTERS_AT_ONCE, s.filters - o),
            )  # fmt: skip
    add_outer(
        s.filters, vectors, into, s.weights, s.inputs, alpha, deltas, s.next, 1, s.next_pitch,
        frames, s.frame, table, s.spots, s.by_sample, batch,
    )  # fmt: skip
    for o in range(s.filters):
        total = ZERO
        for b in range(batch):
            total += deltas[s.next + b * s.next_pitch + o]
        into[s.bias + o] += alpha * total


@inlined
def convolution_forward(s, w, frames, table, batch, unfolded, out, winners):
    for first in range(0, batch, s.group):
        count = min(s.group, batch - first)
        for o in range(s.filters):
            fill(out, o * s.line, count * s.vectors * LANES, w[s.bias + o])
        source, begin = frames, s.frame + first * s.frame_pitch
        if s.unfold:
            unfold(s, frames, begin, count, unfolded)
            source, begin = unfolded, 0
        add_outer(
            s.filters, count * s.vectors, out, 0, s.line, ONE, w, s.weights, s.taps, 1,
            source, begin, table, s.spots, s.by_tap, s.taps,
        )  # fmt: skip
        for b in range(count):
            if s.pool:
                pool(s, out, b, first + b, frames, winners)
            else:
                pass_on(s, out, b, first + b, frames)


@inlined
def convolution_backward(s, w, gradient, frames, deltas, table, batch, unfolded, out, folded, winners, wants_input):
    """Add the gradient to ``gradient``. ``out`` takes the gradient of the layer's output, a group of samples a time."""
    if wants_input:
        fill(deltas, s.frame, batch * s.frame_pitch, ZERO)
    for first in range(0, batch, s.group):
        count = min(s.group, batch - first)
        fill(out, 0, s.filters * s.line, ZERO)
        for b in range(count):
            if s.pool:
                unpool(s, out, b, first + b, frames, deltas, winners, gradient)
            else:
                pass_back(s, out, b, first + b, frames, deltas, gradient)
        source, begin = frames, s.frame + first * s.frame_pitch
        if s.unfold:
            unfold(s, frames, begin, count, unfolded)
            source, begin = unfolded, 0
        add_inner(
            s.filters, s.taps, gradient, s.weights, s.taps, 1, ONE,
            out, 0, s.line, source, begin, table, s.spots, s.by_tap, count * s.vectors,
        )  # fmt: skip
        if wants_input:
            area = s.kernel * s.kernel
            for c in range(s.inputs):
                fill(folded, 0, area * s.line, ZERO)
                add_outer(
                    area, count * s.vectors, folded, 0, s.line, ONE, w, s.weights + c * area, 1, s.taps,
                    out, 0, table, 0, s.by_filter, s.filters,
                )  # fmt: skip
                fold(s, folded, deltas, s.frame + first * s.frame_pitch + c * s.plane, count)


@kernel
def unfold(s, frames, begin, count, unfolded):
    """One line per kernel element: what it sees at every output position. A vector's last lanes run into the next row,
    which is written after it."""
    height, width, pitch, row = s.out_height, s.out_width, s.pitch, s.row
    to = 0
    for c in range(s.inputs):
        for i in range(s.kernel):
            for j in range(s.kernel):
                for b in range(count):
                    seen = begin + b * s.frame_pitch + c * s.plane + i * row + j
                    here = to + b * s.vectors * LANES
                    for _ in range(height):
                        for q in range(0, width, LANES):
                            copy_vector(unfolded, here + q, frames, seen + q)
                        here += pitch
                        seen += row
                to += s.line


@kernel
def fold(s, folded, deltas, begin, count):
    """The reverse for one plane: add every kernel element's line to what it saw."""
    height, width, pitch, row = s.out_height, s.out_width, s.pitch, s.row
    whole = width // LANES * LANES if s.unfold else pitch
    for i in range(s.kernel):
        for j in range(s.kernel):
            for b in range(count):
                here = (i * s.kernel + j) * s.line + b * s.vectors * LANES
                seen = begin + b * s.frame_pitch + i * row + j
                for _ in range(height):
                    for q in range(0, whole, LANES):
                        add_vector(deltas, seen + q, folded, here + q)
                    for q in range(whole, width):
                        deltas[seen + q] += folded[here + q]
                    here += pitch
                    seen += row


@kernel
def pool(s, out, b, sample, frames, winners):
    """The largest of 2 x 2 (the first of equals), and which of the four it was."""
    height, width, pitch = s.out_height // 2, s.out_width // 2, s.pitch
    floor = ZERO if s.relu else np.float32(-np.inf)
    for o in range(s.filters):
        for r in range(height):
            at = o * s.line + b * s.vectors * LANES + 2 * r * pitch
            upper, lower = out[at : at + pitch], out[at + pitch : at + 2 * pitch]
            to = s.next + sample * s.next_pitch + o * s.next_plane + (r + s.next_border) * s.next_row + s.next_border
            largest = frames[to : to + width]
            won = s.winners + ((sample * s.filters + o) * height + r) * width
            winner = winners[won : won + width]
            for q in range(width):
                best, which = upper[2 * q], np.int32(0)
                other = upper[2 * q + 1]
                which = np.int32(1) if other > best else which
                best = other if other > best else best
                other = lower[2 * q]
                which = np.int32(2) if other > best else which
                best = other if other > best else best
                other = lower[2 * q + 1]
                which = np.int32(3) if other > best else which
                best = other if other > best else best
                largest[q] = floor if best <= floor else best
                winner[q] = which


@kernel
def unpool(s, out, b, sample, frames, deltas, winners, gradient):
    height, width, pitch = s.out_height // 2, s.out_width // 2, s.pitch
    floor = ZERO if s.relu else np.float32(-np.inf)
    for o in range(s.filters):
        total = ZERO
        for r in range(height):
            to = o * s.line + b * s.vectors * LANES + 2 * r * pitch
            lines = out[to : to + 2 * pitch]
            at = s.next + sample * s.next_pitch + o * s.next_plane + (r + s.next_border) * s.next_row + s.next_border
            delta, largest = deltas[at : at + width], frames[at : at + width]
            won = s.winners + ((sample * s.filters + o) * height + r) * width
            winner = winners[won : won + width]
            for q in range(width):
                alive = ZERO if largest[q] <= floor else delta[q]
                lines[2 * q + (winner[q] & 1) + (winner[q] >> 1) * pitch] = alive
                total += alive
        gradient[s.bias + o] += total


@kernel
def pass_on(s, out, b, sample, frames):
    """A convolution's output without pooling."""
    floor = ZERO if s.relu else np.float32(-np.inf)
    for o in range(s.filters):
        for r in range(s.out_height):
            at = o * s.line + b * s.vectors * LANES + r * s.pitch
            to = s.next + sample * s.next_pitch + o * s.next_plane + (r + s.next_border) * s.next_row + s.next_border
            for q in range(s.out_width):
                frames[to + q] = floor if out[at + q] <= floor else out[at + q]


@kernel
def pass_back(s, out, b, sample, frames, deltas, gradient):
    floor = ZERO if s.relu else np.float32(-np.inf)
    for o in range(s.filters):
        total = ZERO
        for r in range(s.out_height):
            to = o * s.line + b * s.vectors * LANES + r * s.pitch
            at = s.next + sample * s.next_pitch + o * s.next_plane + (r + s.next_border) * s.next_row + s.next_border
            for q in range(s.out_width):
                alive = ZERO if frames[at + q] <= floor else deltas[at + q]
                out[to + q] = alive
                total += alive
        gradient[s.bias + o] += total


@kernel
def cross_entropy_backward(s, y, rows, frames, deltas):
    """The gradient of the mean cross-entropy of softmax(scores): (softmax - one-hot) / batch. False if a label is no
    class."""
    share = ONE / np.float32(len(rows))
    for b in range(len(rows)):
        begin = s.next + b * s.next_pitch
        label = y[rows[b]]
        if label < 0 or label >= s.filters:
            return False
        largest = frames[begin]
        for k in range(1, s.filters):
            largest = max(largest, frames[begin + k])
        total = ZERO
        for k in range(s.filters):
            power = np.float32(math.exp(frames[begin + k] - largest))
            deltas[begin + k] = power
            total += power
        for k in range(s.filters):
            deltas[begin + k] = deltas[begin + k] / total * share
        deltas[begin + label] -= share
    return True
