"""Rows of a matrix, which are the models that a server keeps for its clients. One vector meets all of them: it is
compared with each, and each may be moved towards it, in one pass over memory. And their weighted sum, and the L1
distance of two vectors."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polytempo.core.compiled import compiled

AT_ONCE = 4
"""Rows that are read side by side: where one stream from memory waits for its next page, the others go on. And the
vector is read once for all of them."""
BLOCK = 1024
"""So many numbers of these rows are still in the first cache when they are moved after they were compared. Sums are in
single precision within a block and in double precision between blocks."""
WORTH_THREADS = 2**21
"""Numbers from which on several threads are faster than one."""


class Compare(IntEnum):
    """What is summed over the coordinates of a row r and the vector v, both counted from an origin o."""

    NOTHING = 0
    PRODUCTS = 1
    """``(r - o) . (v - o)``, with ``|r - o|^2`` beside it."""
    SQUARES = 2
    """``|r - v|^2``"""
    ABSOLUTES = 3
    """``|r - v|_1``"""


class Sums(NamedTuple):
    """One number per row."""

    values: np.ndarray
    row_squares: np.ndarray
    """For ``PRODUCTS``, else zeros."""

    def of(self, rows: np.ndarray) -> "Sums":
        """Those of some rows, by number or as a mask."""
        return Sums(self.values[rows], self.row_squares[rows])


def meet_rows(
    matrix: Tensor, vector: Tensor, compare: Compare, origin: Tensor | None = None, shares: np.ndarray | None = None
) -> Sums:
    """Compare a vector with the rows as they are, then ``r_j <- r_j + share_j (v - r_j)`` in place; without shares they
    stay. An open origin is zero. The result does not depend on the number of threads."""
    rows, size = matrix.shape
    _check("vector", vector.shape, (size,))
    _check("origin", (size,) if origin is None else origin.shape, (size,))
    _check("shares", (rows,) if shares is None else shares.shape, (rows,))
    sums = Sums(np.zeros(rows), np.zeros(rows))
    v = vector.numpy()
    o = np.zeros_like(v) if origin is None else origin.numpy()
    if compare == Compare.SQUARES:
        o = v  # |r - v|^2 is the square of a row that is counted from v
    by = np.zeros(rows, np.float32) if shares is None else shares.astype(np.float32)

    def part(first: int, last: int) -> None:
        of = slice(AT_ONCE * first, AT_ONCE * last)
        _meet(matrix.numpy()[of], v, o, by[of], int(compare), sums.values[of], sums.row_squares[of])

    _in_parts(part, -(-rows // AT_ONCE), matrix.numel())
    return Sums(sums.row_squares, np.zeros(rows)) if compare == Compare.SQUARES else sums


def sum_rows(weights: np.ndarray, matrix: Tensor) -> Tensor:
    """``sum_j w_j r_j``; rows without weight are not touched."""
    rows, size = matrix.shape
    _check("weights", weights.shape, (rows,))
    total = torch.zeros(size)
    used = np.flatnonzero(weights)
    more = -len(used) % AT_ONCE
    which, by = np.pad(used, (0, more), "edge"), np.pad(weights[used].astype(np.float32), (0, more))

    def part(first: int, last: int) -> None:
        _sum(by, which, matrix.numpy(), total.numpy(), first, last)

    _in_parts(part, size, len(used) * size)
    return total


def l1(a: Tensor, b: Tensor) -> float:
    """``||a - b||_1``, several times as fast as ``torch.dist``."""
    _check("b", b.shape, (len(a),))
    return float(_l1(a.numpy(), b.numpy()))


def _check(name: str, shape: Sequence[int], expected: tuple[int, ...]) -> None:
    """Compiled code does not look where it reads."""
    if tuple(shape) != expected:
        raise ValueError(f"{name} of shape {tuple(shape)}; expected {expected}")


def _in_parts(part: Callable[[int, int], None], count: int, numbers: int) -> None:
    """Do something from 0 to ``count``, on all threads where it touches many numbers."""
    if numbers < WORTH_THREADS:
        part(0, count)
    else:
        cuts = np.linspace(0, count, len(os.sched_getaffinity(0)) + 1).astype(int).tolist()
        list(_threads().map(part, cuts[:-1], cuts[1:]))


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads that sleep while there is nothing to do: those of OpenMP would spin, and take the cores from training."""
    return ThreadPoolExecutor(len(os.sched_getaffinity(0)), "rows")


FAST = {"contract", "reassoc", "nsz"}
ZERO = np.float32(0)
NONE = (ZERO, ZERO, ZERO, ZERO), (ZERO, ZERO, ZERO, ZERO)


@compiled(nogil=True, fastmath=FAST)
def _meet(matrix, v, o, shares, compare, values, row_squares):  # type: ignore[no-untyped-def]
    rows, size = matrix.shape
    for first in range(0, rows, AT_ONCE):
        # at the end the last row stands in for those that are missing
        second, third, fourth = min(first + 1, rows - 1), min(first + 2, rows - 1), min(first + 3, rows - 1)
        for begin in range(0, size, BLOCK):
            end = min(size, begin + BLOCK)
            a, b = matrix[first, begin:end], matrix[second, begin:end]
            c, d = matrix[third, begin:end], matrix[fourth, begin:end]
            toward = v[begin:end]
            if compare == 3:
                found = _absolutes(a, b, c, d, toward)
            elif compare > 0:
                found = _products(a, b, c, d, toward, o[begin:end])
            else:
                found = NONE
            for i in range(min(AT_ONCE, rows - first)):
                values[first + i] += found[0][i]
                row_squares[first + i] += found[1][i]
                if shares[first + i] != 0:
                    _move(matrix[first + i, begin:end], toward, shares[first + i])


@compiled(nogil=True, fastmath=FAST)
def _products(a, b, c, d, v, o):  # type: ignore[no-untyped-def]
    to_a = to_b = to_c = to_d = of_a = of_b = of_c = of_d = ZERO
    for k in range(len(v)):
        there = v[k] - o[k]
        away = a[k] - o[k]
        to_a += away * there
        of_a += away * away
        away = b[k] - o[k]
        to_b += away * there
        of_b += away * away
        away = c[k] - o[k]
        to_c += away * there
        of_c += away * away
        away = d[k] - o[k]
        to_d += away * there
        of_d += away * away
    return (to_a, to_b, to_c, to_d), (of_a, of_b, of_c, of_d)


@compiled(nogil=True, fastmath=FAST)
def _absolutes(a, b, c, d, v):  # type: ignore[no-untyped-def]
    to_a = to_b = to_c = to_d = ZERO
    for k in range(len(v)):
        to_a += abs(a[k] - v[k])
        to_b += abs(b[k] - v[k])
        to_c += abs(c[k] - v[k])
        to_d += abs(d[k] - v[k])
    return (to_a, to_b, to_c, to_d), NONE[1]


@compiled(nogil=True, fastmath=FAST)
def _l1(a, b):  # type: ignore[no-untyped-def]
    total = 0.0
    for begin in range(0, len(a), BLOCK):
        of_block = ZERO
        for k in range(begin, min(len(a), begin + BLOCK)):
            of_block += abs(a[k] - b[k])
        total += float(of_block)
    return total


@compiled(nogil=True, fastmath=FAST)
def _move(row, v, share):  # type: ignore[no-untyped-def]
    for k in range(len(row)):
        row[k] += share * (v[k] - row[k])


@compiled(nogil=True, fastmath={"contract"})
def _sum(weights, used, matrix, total, first, last):  # type: ignore[no-untyped-def]
    for begin in range(first, last, BLOCK):
        end = min(last, begin + BLOCK)
        into = total[begin:end]
        for j in range(0, len(used), AT_ONCE):
            a, b = matrix[used[j], begin:end], matrix[used[j + 1], begin:end]
            c, d = matrix[used[j + 2], begin:end], matrix[used[j + 3], begin:end]
            of_a, of_b, of_c, of_d = weights[j], weights[j + 1], weights[j + 2], weights[j + 3]
            for k in range(len(into)):
                into[k] += of_a * a[k] + of_b * b[k] + of_c * c[k] + of_d * d[k]
