"""CASA's splitting rule, written from the paper of Liu et al. (2024) alone (Eqs. 6, 12 to 14 and Algorithm 3), and what
our memory of earlier cosines comes to, as sums over all comparisons."""

from collections.abc import Sequence

import numpy as np


def alpha_c(t: int, members: int, alpha0: float = 2.0, kappa: float = 0.001) -> float:
    return float(alpha0 * (np.e / 2.8) ** (kappa * t) / np.log2(members + 3))


def parts_and_eigengap(similarity: np.ndarray) -> tuple[int, float]:
    """``R = argmax_k lambda_{k+1} - lambda_k`` over the first ten eigenvalues of L, by the SVD that the paper names."""
    degrees = np.diag(similarity.sum(axis=1) ** -0.5)
    laplacian = np.eye(len(similarity)) - degrees @ similarity @ degrees
    eigenvalues = np.sort(np.linalg.svd(laplacian, compute_uv=False))[:10]
    gaps = eigenvalues[1:] - eigenvalues[:-1]
    return int(np.argmax(gaps)) + 1, float(np.max(gaps))


def has_to_split(similarity: np.ndarray, t: int, gamma: float) -> bool:
    """Algorithm 3, line 6, for a cluster of everybody in the matrix; one part is no split."""
    parts, gap = parts_and_eigengap(similarity)
    return parts > 1 and alpha_c(t, len(similarity)) < gap**gamma


def cosine_of_all(comparisons: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """``sum a . b / sum ||a|| ||b||`` over all comparisons of a pair"""
    products = sum(float(a @ b) for a, b in comparisons)
    return products / sum(float(np.linalg.norm(a) * np.linalg.norm(b)) for a, b in comparisons)
