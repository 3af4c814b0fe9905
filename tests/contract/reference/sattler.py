"""Clustered federated learning, written from the paper of Sattler et al. (2020) alone, for a few clients: all
bipartitions are tried (Eq. 19), and a cluster splits by the three conditions of Algorithm 2."""

from itertools import combinations

import numpy as np


def cosines(deltas: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(deltas, axis=1)
    return deltas @ deltas.T / np.outer(lengths, lengths)


def least_cross_similarity(similarity: np.ndarray) -> float:
    """``min over (c1, c2) of max over i in c1, j in c2 of alpha_ij``"""
    everybody = set(range(len(similarity)))
    return min(
        max(similarity[i, j] for i in some for j in everybody - set(some))
        for size in range(1, len(everybody) // 2 + 1)
        for some in combinations(sorted(everybody), size)
    )


def has_to_split(deltas: np.ndarray, samples: np.ndarray, eps1: float, eps2: float, gamma_max: float) -> bool:
    mean = (samples[:, None] * deltas).sum(0) / samples.sum()
    if np.linalg.norm(mean) >= eps1 or np.linalg.norm(deltas, axis=1).max() <= eps2:
        return False
    return bool(gamma_max < np.sqrt((1 - least_cross_similarity(cosines(deltas))) / 2))
