"""Spectral clustering: into how many parts a graph of clients falls, how clearly, and which (CASA, section 4.3)."""

import numpy as np

from polytempo_client.streams import stream

LOOKED_AT = 10
"""Eigenvalues that are looked at, from the smallest up (CASA, appendix A.2.3)."""
DENSE = 200
"""Up to so many clients all eigenvalues cost less than a few of them."""


def eigengap(affinity: np.ndarray) -> tuple[int, float]:
    """``R = argmax_r lambda_{r+1} - lambda_r`` over the first ten eigenvalues of ``L = I - D^-1/2 A D^-1/2``, and that
    gap (Eqs. 12 and 13). The affinity is symmetric, not negative, with ones on its diagonal."""
    gaps = np.diff(_smallest(affinity))
    if not len(gaps):
        return 1, 0.0
    largest = int(gaps.argmax())
    return largest + 1, float(gaps[largest])


def spectral_parts(affinity: np.ndarray, parts: int) -> list[list[int]]:
    """The rows of an affinity in so many parts or, where some come out empty, in fewer; each at least one row."""
    from sklearn.cluster import SpectralClustering  # here, because it takes a second to import

    # Given start vector and pivoted QR instead of k-means: no luck involved.
    clustering = SpectralClustering(parts, affinity="precomputed", assign_labels="cluster_qr", random_state=0)
    labels = clustering.fit_predict(affinity)
    return [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]


def _smallest(affinity: np.ndarray) -> np.ndarray:
    size = len(affinity)
    scale = 1 / np.sqrt(affinity.sum(1))
    if size <= DENSE:
        return 1 - np.linalg.eigvalsh(affinity * scale[:, None] * scale)[::-1][:LOOKED_AT]
    from scipy.sparse.linalg import LinearOperator, eigsh  # here, because it takes a while to import

    product = LinearOperator((size, size), matvec=lambda x: scale * (affinity @ (scale * x.ravel())), dtype=np.float64)
    start = stream(0, "eigenvalues").normal(size=size)
    largest = eigsh(product, LOOKED_AT, which="LA", v0=start, return_eigenvectors=False)
    return np.sort(1 - largest)
