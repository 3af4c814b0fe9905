"""A batch's way through all stages and back, and the memory it takes."""

from typing import NamedTuple

import numpy as np
import torch

from polytempo.learn.fused.compiling import inlined, kernel
from polytempo.learn.fused.convolution import add_packed, convolution_backward, convolution_forward, pack
from polytempo.learn.fused.dense import (
    clear,
    dense_backward,
    dense_forward,
    embed,
    embed_backward,
    flatten,
    read_samples,
    unflatten,
)
from polytempo.learn.fused.plan import CONVOLVE, DENSE, EMBED, FLATTEN, READ, Plan


class Workspace(NamedTuple):
    """What a call computes in. Zeros at first, and no pass reads what another has left: borders and the lanes behind a
    frame's numbers stay zero, and all else is written before it is read."""

    frames: np.ndarray
    deltas: np.ndarray
    """The loss's gradient with respect to every number of the frames."""
    packed: np.ndarray
    out: np.ndarray
    """A convolution's output for one sample, or the gradient of it."""
    winners: np.ndarray
    """Which place of each window was the largest."""
    words: np.ndarray
    """For each word of the vocabulary, where its gradient is summed up."""
    ones: np.ndarray


def make_workspace(plan: Plan) -> Workspace:
    frames, deltas, packed, out = (zeros(size) for size in (plan.frames, plan.frames, plan.packed, plan.out))
    winners, words = np.zeros(plan.winners, np.int32), np.zeros(plan.words, np.int64)
    return Workspace(frames, deltas, packed, out, winners, words, np.ones(1, np.float32))


def zeros(size: int) -> np.ndarray:
    """Where torch would put them: a vector that lies across two lines of the cache takes twice as long to load."""
    return torch.zeros(size).numpy()


@inlined
def forward(stages, w, m, x, tokens, rows):
    """False if a word is none of the model's."""
    known = True
    for k in range(len(stages)):
        s = stages[k]
        if s.kind == CONVOLVE:
            convolution_forward(s, m, len(rows))
        elif s.kind == DENSE:
            dense_forward(s, w, m, len(rows))
        elif s.kind == READ:
            read_samples(s, x, rows, m)
        elif s.kind == FLATTEN:
            flatten(s, m, len(rows))
        else:
            known = embed(s, tokens, rows, w, m)
    return known


@inlined
def backward(stages, w, into, alpha, m, tokens, rows):
    """Add alpha times the gradient to ``into``: the weights themselves, or a gradient vector."""
    for k in range(len(stages) - 1, -1, -1):
        s = stages[k]
        if s.clears:
            clear(s, m, len(rows))
        if s.kind == CONVOLVE:
            convolution_backward(s, m, len(rows))
            add_packed(s, m.packed, into, alpha)
        elif s.kind == DENSE:
            dense_backward(s, w, into, alpha, m, len(rows))
        elif s.kind == FLATTEN:
            unflatten(s, m, len(rows))
        elif s.kind == EMBED:
            embed_backward(s, tokens, rows, into, alpha, m)


@kernel
def pack_all(stages, w, packed):
    for k in range(len(stages)):
        if stages[k].kind == CONVOLVE:
            pack(stages[k], w, packed)
