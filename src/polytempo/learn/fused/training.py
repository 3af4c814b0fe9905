"""One client's local training, the whole or a segment of it, in one compiled call that holds no GIL: plain SGD adds its
steps straight into the weights; everything else collects a gradient vector first. ``learn.eager`` is the reference for
every option."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from polytempo.core.compiled import compiled
from polytempo.learn.fused.kernels import (
    ONE,
    SETTINGS,
    convolution_backward,
    convolution_forward,
    cross_entropy_backward,
    dense_backward,
    dense_forward,
    fill,
    inlined,
    kernel,
    read_batch,
)
from polytempo.learn.fused.vector import LANES

OPTIONS = np.dtype(
    [(name, np.float32) for name in ("lr", "momentum", "weight_decay", "proximal", "cosine", "l2")]
    + [(name, np.int64) for name in ("adam", "plain")]
)
FINISHED = -1


@kernel
def regularise(gradient, w, anchor, options):
    """Add the gradient of those of ``Objective``'s terms that have an anchor."""
    square_away = square_w = square_anchor = product = 0.0
    for i in range(len(anchor)):
        away = w[i] - anchor[i]
        square_away += away * away
        square_w += w[i] * w[i]
        square_anchor += anchor[i] * anchor[i]
        product += w[i] * anchor[i]
    pull = options.proximal
    if square_away > 0:
        pull += np.float32(options.l2 / np.sqrt(square_away))
    along_anchor = along_w = np.float32(0)
    norms = np.sqrt(square_w) * np.sqrt(square_anchor)
    if norms > 0:
        along_anchor = np.float32(options.cosine / norms)
        along_w = np.float32(options.cosine * product / norms / square_w)
    for i in range(len(anchor)):
        gradient[i] += pull * (w[i] - anchor[i]) - along_anchor * anchor[i] + along_w * w[i]


@kernel
def correct_decay_and_mask(gradient, w, linear, mask, options):
    for i in range(len(linear)):  # none without a linear term
        gradient[i] += linear[i]
    weight_decay = options.weight_decay
    if weight_decay != 0:
        for i in range(len(w)):
            gradient[i] += weight_decay * w[i]
    for i in range(len(mask)):  # none without a mask
        gradient[i] = gradient[i] if mask[i] else np.float32(0)


@kernel
def sgd(gradient, w, options):
    """Leaves momentum times the step in ``gradient``: the next step's gradient is added to it."""
    lr, momentum = options.lr, options.momentum
    for i in range(len(w)):
        step = gradient[i]
        w[i] -= lr * step
        gradient[i] = momentum * step


@kernel
def adam(gradient, w, first_moment, second_moment, step, options):
    scale = np.float32(1 / np.sqrt(1 - 0.999 ** (step + 1)))
    rate = np.float32(options.lr / (1 - 0.9 ** (step + 1)))
    for i in range(len(w)):
        g = gradient[i]
        first = first_moment[i] + np.float32(0.1) * (g - first_moment[i])
        second = np.float32(0.999) * second_moment[i] + np.float32(0.001) * g * g
        w[i] -= rate * (first / (np.sqrt(second) * scale + np.float32(1e-8)))
        first_moment[i], second_moment[i], gradient[i] = first, second, np.float32(0)


@kernel
def refresh(w, fresh, began, rebase, kept):
    for i in range(len(fresh)):
        if len(kept) == 0 or not kept[i]:
            w[i] = w[i] + (fresh[i] - began[i]) if rebase else fresh[i]


@inlined
def backward(stages, w, gradient, plain, lr, frames, deltas, table, batch, unfolded, out, folded, winners):
    into, alpha = gradient, ONE
    if plain:
        into, alpha = w, -lr
    for k in range(len(stages) - 1, -1, -1):
        s = stages[k]
        if not s.convolution:
            dense_backward(s, w, into, alpha, frames, deltas, table, batch, k > 0)
            continue
        # the weights are still needed while the groups of samples go by
        convolution_backward(s, w, gradient, frames, deltas, table, batch, unfolded, out, folded, winners, k > 0)
        if plain:
            for i in range(s.weights, s.bias + s.filters):
                w[i] -= lr * gradient[i]
            fill(gradient, s.weights, s.bias + s.filters - s.weights, np.float32(0))


def _sources() -> str:
    """numba's cache on disk looks at one file only; this makes it look at the whole package."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _compiled(sources: str) -> Callable[..., Any]:
    def train(
        stages, table, scratch, options, first, last, w, gradient, moments, x, y, rows, offsets, anchor, linear,
        mask, kept, refresh_at, refresh_rebase, fresh, began,
    ):  # fmt: skip
        """Train ``w`` in place (it has LANES zeros after its end) from step ``first`` to before step ``last``; the step
        whose labels are wrong, or FINISHED. ``gradient`` (as long as ``w``) and ``moments`` begin as zeros and are
        what the optimiser keeps between calls. An empty anchor is ``began``, the start or the last refresh; an empty
        linear term is zero, an empty mask is true everywhere, and refreshes change all where ``kept`` is empty."""
        assert len(sources) > 0
        weights = w[: len(w) - LANES]
        frames, deltas = np.zeros(scratch[0], np.float32), np.zeros(scratch[0], np.float32)
        unfolded, out = np.zeros(scratch[1], np.float32), np.zeros(scratch[2], np.float32)
        folded, winners = np.zeros(scratch[3], np.float32), np.zeros(scratch[4], np.int32)
        regularised = options.proximal != 0 or options.cosine != 0 or options.l2 != 0
        refreshed = 0
        for step in range(first, last + 1):
            while refreshed < len(refresh_at) and (refresh_at[refreshed] == step or step == last):
                refresh(weights, fresh[refreshed], began, refresh_rebase[refreshed], kept)
                began = fresh[refreshed]
                refreshed += 1
            if step == last:  # only refreshes come after the last step
                break
            batch_rows = rows[offsets[step] : offsets[step + 1]]
            batch = len(batch_rows)
            read_batch(stages[0], x, len(x) // len(y), batch_rows, frames)
            for k in range(len(stages)):
                if stages[k].convolution:
                    convolution_forward(stages[k], w, frames, table, batch, unfolded, out, winners)
                else:
                    dense_forward(stages[k], w, frames, table, batch)
            if not cross_entropy_backward(stages[len(stages) - 1], y, batch_rows, frames, deltas):
                return step
            backward(
                stages, w, gradient, options.plain, options.lr,
                frames, deltas, table, batch, unfolded, out, folded, winners,
            )  # fmt: skip
            if options.plain:
                continue
            if regularised:
                regularise(gradient, weights, anchor if len(anchor) > 0 else began, options)
            correct_decay_and_mask(gradient, weights, linear, mask, options)
            if options.adam:
                adam(gradient, weights, moments[0], moments[1], step, options)
            else:
                sgd(gradient, weights, options)
        return FINISHED

    return compiled(**SETTINGS)(train)


train = _compiled(_sources())
