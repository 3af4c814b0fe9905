"""Dense layers, what lies between them and images, embeddings of words, and the loss."""

import math

import numpy as np

from polytempo.learn.fused.compiling import LANES, ONE, ZERO, inlined, kernel
from polytempo.learn.fused.moving import add_times, fill, move, rectify
from polytempo.learn.fused.tiles import Lines, Terms, add_inner, add_outer

FILTERS_AT_ONCE = 12
"""Rows of the weights that stay in the first caches from the input's gradient to their own."""


@inlined
def dense_forward(s, w, m, batch):
    vectors = (s.taps + LANES - 1) // LANES
    add_inner(
        s.filters, batch, Lines(m.frames, s.target, 1), s.target_pitch, Lines(w, s.bias, 1), ONE,
        Lines(w, s.weights, s.taps), Lines(m.frames, s.source, s.source_pitch), vectors,
    )  # fmt: skip
    if s.relu:
        for b in range(batch):
            rectify(m.frames, m.frames, s.target + b * s.target_pitch, s.filters)


@inlined
def dense_backward(s, w, into, alpha, m, batch):
    """Add alpha times the gradient to ``into`` (the weights themselves, or a gradient vector)."""
    if s.relu:
        for b in range(batch):
            rectify(m.deltas, m.frames, s.target + b * s.target_pitch, s.filters)
    vectors = (s.taps + LANES - 1) // LANES
    for o in range(0, s.filters, FILTERS_AT_ONCE):
        rows = min(FILTERS_AT_ONCE, s.filters - o)
        if s.passes_back:
            before = Lines(m.deltas, s.source, s.source_pitch)
            add_outer(
                batch, vectors, before, before, ONE, Terms(m.deltas, s.target + o, 0, 1), s.target_pitch,
                Terms(w, s.weights + o * s.taps, 0, s.taps), 1, rows,
            )  # fmt: skip
        lines = Lines(into, s.weights + o * s.taps, s.taps)
        add_outer(
            rows, vectors, lines, lines, alpha, Terms(m.deltas, s.target + o, 0, s.target_pitch), 1,
            Terms(m.frames, s.source, 0, s.source_pitch), 1, batch,
        )  # fmt: skip
    for o in range(s.filters):
        total = ZERO
        for b in range(batch):
            total += m.deltas[s.target + b * s.target_pitch + o]
        into[s.bias + o] += alpha * total


@kernel
def read_samples(s, x, rows, m):
    """Copy samples into the first frame: planes of numbers become places of channels."""
    size = s.channels * s.rows * s.columns
    for b in range(len(rows)):
        first = rows[b] * size
        for c in range(s.channels):
            for r in range(s.rows):
                to = s.target + b * s.target_pitch + r * s.target_row + c
                move(m.frames, to, s.target_step, x, first, 1, s.columns)
                first += s.columns


@kernel
def flatten(s, m, batch):
    """Places of channels become planes, as torch counts them."""
    area = s.rows * s.columns
    for b in range(batch):
        seen, to = s.source + b * s.source_pitch, s.target + b * s.target_pitch
        for c in range(s.channels):
            move(m.frames, to + c * area, 1, m.frames, seen + c, s.channels, area)


@kernel
def unflatten(s, m, batch):
    area = s.rows * s.columns
    for b in range(batch):
        seen, to = s.source + b * s.source_pitch, s.target + b * s.target_pitch
        for c in range(s.channels):
            move(m.deltas, seen + c, s.channels, m.deltas, to + c * area, 1, area)


@kernel
def embed(s, tokens, rows, w, m):
    """Copy the vectors of the samples' words into the first frame."""
    for b in range(len(rows)):
        for t in range(s.columns):
            token = tokens[rows[b] * s.columns + t]
            if token < 0 or token >= s.filters:
                return False
            to = s.target + b * s.target_pitch + t * s.target_step
            move(m.frames, to, 1, w, s.weights + token * s.channels, 1, s.channels)
    return True


@kernel
def embed_backward(s, tokens, rows, into, alpha, m):
    """Sums of a word's gradients first: added one by one to a weight, each would be rounded to it."""
    for b in range(len(rows)):
        for t in range(s.columns):
            token, at = tokens[rows[b] * s.columns + t], s.target + b * s.target_pitch + t * s.target_step
            if m.words[token] == 0:
                m.words[token] = at
            else:
                add_times(m.deltas, m.words[token], 1, ONE, m.deltas, at, 1, s.channels)
    for b in range(len(rows)):
        for t in range(s.columns):
            token = tokens[rows[b] * s.columns + t]
            if m.words[token] != 0 and token != s.padding:
                weight = s.weights + token * s.channels
                add_times(into, weight, 1, alpha, m.deltas, m.words[token], 1, s.channels)
            m.words[token] = 0


@kernel
def cross_entropy_backward(s, y, rows, m):
    """The gradient of the mean cross-entropy of softmax(scores): (softmax - one-hot) / batch. False if a label is no
    class."""
    frames, deltas = m.frames, m.deltas
    share = ONE / np.float32(len(rows))
    for b in range(len(rows)):
        begin = s.target + b * s.target_pitch
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


@kernel
def clear(s, m, batch):
    """Begin the gradient of a stage's input."""
    fill(m.deltas, s.frame, batch * s.source_pitch, ZERO)
