"""Sketches: a few numbers in place of each client's own model, small enough to keep one of every evaluation, and as far
from each other as the models are (a count sketch, Charikar et al. 2002)."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from polytempo_client.streams import stream

SIZE = 64
"""Numbers in a sketch. The distance between two sketches is that between the two models, up to about 1/sqrt(SIZE)."""
DIGITS = 4
"""Significant digits that are written down; the sketch itself is not more exact."""
FOLLOWED = 500
"""Clients that are sketched: more dots than a plot can show would only make long files."""


class Sketches:
    """``s[bucket_k] += sign_k (w_k - w0_k)`` over the last own model w of each client that is followed, all of them or
    ``FOLLOWED`` spread evenly over their numbers; w0 is the initial model."""

    def __init__(self, initial: Tensor, clients: int, seed: int) -> None:
        rng = stream(seed, "sketch")
        self._initial = initial
        self._buckets = torch.from_numpy(rng.integers(SIZE, size=len(initial)))
        self._signs = torch.from_numpy(2 * rng.integers(2, size=len(initial), dtype=np.int8) - 1)
        self._followed = np.unique(np.linspace(0, clients - 1, min(clients, FOLLOWED)).round().astype(int))
        self._new: dict[int, np.ndarray] = {}  # since the last row

    def keep(self, client: int, weights: Tensor) -> None:
        """A client has a new model of its own."""
        at = int(np.searchsorted(self._followed, client))
        if at < len(self._followed) and self._followed[at] == client:
            self._new[client] = self.sketch(weights)

    def sketch(self, weights: Tensor) -> np.ndarray:
        """The numbers of one model."""
        signed = ((weights - self._initial) * self._signs).double()
        return torch.zeros(SIZE, dtype=torch.float64).index_add_(0, self._buckets, signed).numpy()

    def take_row(self, now: float, updates: int) -> dict[str, Any] | None:
        """The sketches that have changed since the last row; None if none have."""
        if not self._new:
            return None
        clients = sorted(self._new)
        rounded = [[float(f"{number:.{DIGITS}g}") for number in self._new[client]] for client in clients]
        self._new = {}
        return {"time": now, "updates": updates, "clients": np.array(clients), "sketches": np.array(rounded)}

    def save_state(self) -> dict[str, Any]:
        return {"new": self._new}

    def load_state(self, saved: dict[str, Any]) -> None:
        self._new = saved["new"]
