"""One vector meets all rows of a matrix: it is compared with each, and each may be moved towards it, in one pass over
memory. The rows are the models that a server keeps for its clients, so the pass is what an update costs."""

import threading
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numba import prange
from torch import Tensor

from polytempo.core.compiled import compiled

BLOCK = 1024
"""So many numbers of a row are still in the first cache when they are moved after they were compared. Sums are in
single precision within a block and in double precision between blocks."""
ROWS_AT_ONCE = 8
"""Rows that a thread takes block by block, so that the vector comes from the first cache for all but the first."""


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
    from_origin = numbers if origin is None else numbers - origin.numpy()
    by = np.zeros(rows, np.float32) if shares is None else shares.astype(np.float32)
    with _one_at_a_time:
        _meet(
            matrix.numpy(), numbers, from_origin, np.zeros(0, np.float32) if origin is None else origin.numpy(),
            by, int(compare), *sums,
        )  # fmt: skip
    return sums


# Not every threading layer of numba can be entered by two threads at once.
_one_at_a_time = threading.Lock()


@compiled(parallel=True, fastmath={"contract", "reassoc", "nsz"})
def _meet(matrix, vector, from_origin, origin, shares, compare, values, row_squares):  # type: ignore[no-untyped-def]
    rows, size = matrix.shape
    for group in prange(-(-rows // ROWS_AT_ONCE)):
        first, last = group * ROWS_AT_ONCE, min(rows, (group + 1) * ROWS_AT_ONCE)
        for begin in range(0, size, BLOCK):
            end = min(size, begin + BLOCK)
            toward, there = vector[begin:end], from_origin[begin:end]
            for j in range(first, last):
                row = matrix[j, begin:end]
                total, square = np.float32(0), np.float32(0)
                if compare == 1 and len(origin) > 0:
                    here = origin[begin:end]
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
                share = shares[j]
                if share != 0:  # a loop of its own: one that both sums and writes would not become vector code
                    for k in range(len(row)):
                        row[k] += share * (toward[k] - row[k])
