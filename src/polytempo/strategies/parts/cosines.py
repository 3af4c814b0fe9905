"""Cosines: of two vectors, of all pairs of a group, their mean, and where one more vector belongs."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

COORDINATES = 4096
"""So many coordinates of all vectors are copied at a time."""


def cosine(a: Tensor, b: Tensor, lengths: float) -> float:
    """``a . b / lengths``, given the product of both lengths; 0 for a zero vector."""
    return float(torch.dot(a, b)) / lengths if lengths else 0.0


def cosines(vectors: Sequence[Tensor]) -> np.ndarray:
    """``A_ij = cos(v_i, v_j)``, 0 for a zero vector, with ones on the diagonal."""
    products = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    for begin in range(0, len(vectors[0]), COORDINATES):
        block = torch.stack([vector[begin : begin + COORDINATES] for vector in vectors])
        products += block @ block.T
    products = (products + products.T) / 2  # a library's product need not be symmetric to the last bit
    lengths = products.diagonal().sqrt()
    lengths[lengths == 0] = torch.inf
    found = np.clip((products / torch.outer(lengths, lengths)).numpy(), -1, 1)
    np.fill_diagonal(found, 1)
    return found


def cosines_by_client(vectors: Mapping[int, Tensor]) -> np.ndarray | None:
    """The same by client number, NaN for clients without a vector; None if nobody has one."""
    if not vectors:
        return None
    clients = sorted(vectors)
    found = np.full((clients[-1] + 1, clients[-1] + 1), np.nan)
    found[np.ix_(clients, clients)] = cosines([vectors[client] for client in clients])
    return found


def unit_sum(vectors: Sequence[Tensor]) -> Tensor:
    """``S = sum_i v_i / ||v_i||``"""
    total = torch.zeros_like(vectors[0], dtype=torch.float64)
    for vector in vectors:
        total.add_(vector, alpha=1 / (norm(vector) or 1.0))
    return total


def mean_cosine(units: Tensor, count: int) -> float:
    """The mean over all pairs of different vectors, from the sum S of their unit vectors:
    ``(||S||^2 - c) / (c (c - 1))``."""
    return (norm(units) ** 2 - count) / (count * (count - 1))


def nearest(vector: Tensor, directions: Mapping[int, Tensor], otherwise: int) -> int:
    """The number of the direction with the highest cosine; ``otherwise`` if none leads anywhere."""
    lengths = {number: norm(direction) for number, direction in directions.items()}

    def likeness(number: int) -> float:
        return float(torch.dot(vector.double(), directions[number].double())) / lengths[number]

    return max((number for number, length in lengths.items() if length), key=likeness, default=otherwise)


def norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector))
