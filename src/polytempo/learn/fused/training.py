"""One client's local training, the whole or a segment of it, in one compiled call that holds no GIL: plain SGD adds its
steps straight into the weights; everything else collects a gradient vector first. ``learn.eager`` is the reference for
every option."""

from collections.abc import Callable
from typing import Any

import numpy as np

from polytempo.core.compiled import compiled
from polytempo.learn.fused.compiling import LANES, SETTINGS, kernel, sources
from polytempo.learn.fused.dense import cross_entropy_backward
from polytempo.learn.fused.passes import Workspace, backward, forward, pack_all

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


def _compiled(files: str) -> Callable[..., Any]:
    def train(
        stages, workspace, options, first, last, w, gradient, moments, x, tokens, y, rows, offsets, anchor, linear,
        mask, kept, refresh_at, refresh_rebase, fresh, began,
    ):  # fmt: skip
        """Train ``w`` in place (it has LANES zeros after its end) from step ``first`` to before step ``last``; the step
        whose labels or words are wrong, or FINISHED. ``gradient`` (as long as ``w``, or empty for plain SGD) and
        ``moments`` begin as zeros and are what the optimiser keeps between calls. An empty anchor is ``began``, the
        start or the last refresh; an empty linear term is zero, an empty mask is true everywhere, and refreshes change
        all where ``kept`` is empty. ``workspace`` is a plain tuple: numba's cache on disk could not be read any more
        if it named a class that a later version has not."""
        assert len(files) > 0
        m = Workspace(*workspace)
        weights = w[: len(w) - LANES]
        into, alpha = (w, -options.lr) if options.plain else (gradient, np.float32(1))
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
            pack_all(stages, w, m.packed)
            if not forward(stages, w, m, x, tokens, batch_rows):
                return step
            if not cross_entropy_backward(stages[len(stages) - 1], y, batch_rows, m):
                return step
            backward(stages, w, into, alpha, m, tokens, batch_rows)
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


train = _compiled(sources())
