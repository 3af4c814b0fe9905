"""Rows of a matrix, which are the models that a server keeps for its clients. One vector meets all of them: it is
compared with each, and each may be moved towards it, in one pass over memory. And their weighted sum."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polytempo.core.compiled import compiled

BLOCK = 2048
"""So many numbers of a row are still in the first cache when they are moved after they were compared. Sums are in
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


def meet_rows(
    matrix: Tensor, vector: Tensor, compare: Compare, origin: Tensor | None = None, shares: np.ndarray | None = None
) -> Sums:
    """Compare a vector with the rows as they are, then ``r_j <- r_j + share_j (v - r_j)`` in place; without shares they
    stay. An open origin is zero. The result does not depend on the number of threads."""
    rows = len(matrix)
    sums = Sums(np.zeros(rows), np.zeros(rows))
    numbers = vector.numpy()
    centre = np.zeros(0, np.float32) if origin is None else origin.numpy()
    from_centre = numbers if origin is None else numbers - centre
    by = np.zeros(rows, np.float32) if shares is None else shares.astype(np.float32)

    def part(first: int, last: int) -> None:
        _meet(
            matrix.numpy()[first:last], numbers, from_centre, centre, by[first:last], int(compare),
            sums.values[first:last], sums.row_squares[first:last],
        )  # fmt: skip

    _in_parts(part, rows, matrix.numel())
    return sums


def sum_rows(weights: np.ndarray, matrix: Tensor) -> Tensor:
    """``sum_j w_j r_j``; rows without weight are not touched."""
    total = torch.zeros(matrix.shape[1])
    used = np.flatnonzero(weights)

    def part(first: int, last: int) -> None:
        _sum(weights[used].astype(np.float32), used, matrix.numpy()[:, first:last], total.numpy()[first:last])

    _in_parts(part, matrix.shape[1], len(used) * matrix.shape[1])
    return total


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


@compiled(nogil=True, fastmath={"contract", "reassoc", "nsz"})
def _meet(matrix, vector, from_origin, origin, shares, compare, values, row_squares):  # type: ignore[no-untyped-def]
    rows, size = matrix.shape
    for j in range(rows):
        share = shares[j]
        for begin in range(0, size, BLOCK):
            end = min(size, begin + BLOCK)
            row, toward = matrix[j, begin:end], vector[begin:end]
            total, square = np.float32(0), np.float32(0)
            if compare == 1 and len(origin) > 0:
                here, there = origin[begin:end], from_origin[begin:end]
                for k in range(len(row)):
                    away = row[k] - here[k]
                    total += away * there[k]
                    square += away * away
            elif compare == 1:
                for k in range(len(row)):
                    total += row[k] * toward[k]
                    square += row[k] * row[k]
            elif compare == 2:
                for k in range(len(row)):
                    total += (row[k] - toward[k]) * (row[k] - toward[k])
            elif compare == 3:
                for k in range(len(row)):
                    total += abs(row[k] - toward[k])
            values[j] += total
            row_squares[j] += square
            if share != 0:  # a loop of its own: one that both sums and writes would not become vector code
                for k in range(len(row)):
                    row[k] += share * (toward[k] - row[k])


@compiled(nogil=True, fastmath={"contract"})
def _sum(weights, used, matrix, total):  # type: ignore[no-untyped-def]
    for begin in range(0, len(total), BLOCK):
        into = total[begin : begin + BLOCK]
        for j in range(len(used)):
            row, weight = matrix[used[j], begin : begin + BLOCK], weights[j]
            for k in range(len(into)):
                into[k] += weight * row[k]
