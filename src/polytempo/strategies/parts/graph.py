"""The collaboration graph: how much each client's model takes from everybody else's (Liu et al., PACE, section III)."""

from typing import cast

import numpy as np

from polytempo.core.stateful import stateful


def project_simplex(v: np.ndarray) -> np.ndarray:
    """The nearest point to v with ``w >= 0`` and ``sum w = 1``, exactly (Held, Wolfe and Crowder, 1974): v less a
    threshold, cut off at 0. It is the solution of ``min ||w - v||^2``, for which others call a QP solver."""
    descending = np.sort(v)[::-1]
    thresholds = (np.cumsum(descending) - 1) / np.arange(1, len(v) + 1)
    kept = np.count_nonzero(descending > thresholds)
    return np.maximum(v - thresholds[kept - 1], 0)


@stateful
class Graph:
    """``W[i, j]``, the weight of client j in the model of client i, by client number, in single precision. A row that
    was never estimated counts as p, the shares of all data: ``p_j = n_j / n``. A client that left stays: it may come
    back, and others learn from what it knew."""

    def __init__(self) -> None:
        self._rows = np.zeros((0, 0), np.float32)
        self.joined = np.zeros(0, bool)
        self.estimated = np.zeros(0, bool)
        self.samples = np.zeros(0)
        """NaN before a client first handed in: it is then taken to have as many as the others on average."""

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def weights(self) -> np.ndarray:
        return self._rows[: len(self), : len(self)]

    def join(self, client: int) -> None:
        """Have a row for this client (and for all of a lower number, who may be yet to come)."""
        more = client + 1 - len(self)
        if client >= len(self._rows):  # twice as many, so that all joins together cost no more than the last one
            rows = np.zeros((max(client + 1, 2 * len(self._rows)),) * 2, np.float32)
            rows[: len(self), : len(self)] = self.weights
            self._rows = rows
        if more > 0:
            self.joined = np.pad(self.joined, (0, more))
            self.estimated = np.pad(self.estimated, (0, more))
            self.samples = np.pad(self.samples, (0, more), constant_values=np.nan)
        self.joined[client] = True

    def forget(self, client: int) -> None:
        """The client has never joined, and nobody learns from it: what others took from it they take from each other,
        in proportion."""
        self.joined[client] = self.estimated[client] = False
        self.samples[client] = np.nan
        self.weights[client] = self.weights[:, client] = 0
        totals = self.weights.sum(axis=1, keepdims=True)
        self.estimated &= totals[:, 0] > 0
        np.divide(self.weights, totals, out=self.weights, where=totals > 0)

    def clients(self) -> np.ndarray:
        """The numbers of all who ever joined."""
        return np.flatnonzero(self.joined)

    def known(self) -> np.ndarray:
        """The numbers of those who have handed in."""
        return np.flatnonzero(~np.isnan(self.samples))

    def p(self) -> np.ndarray:
        """By client number; 0 for who never joined."""
        given = self.samples[self.known()]
        samples = np.where(np.isnan(self.samples), given.mean() if len(given) else 1.0, self.samples) * self.joined
        return samples / samples.sum()

    def put(self, client: int, clients: np.ndarray, row: np.ndarray) -> None:
        """The row of a client over these clients; 0 for all others."""
        self.weights[client] = 0
        self.weights[client, clients] = row
        self.estimated[client] = True

    def column(self, client: int) -> np.ndarray:
        """``W_ji`` for every j: what everybody takes from client i."""
        return np.where(self.estimated, self.weights[:, client], self.p()[client] * self.joined)

    def own(self) -> np.ndarray:
        """``W_jj`` for every j."""
        return np.where(self.estimated, self.weights.diagonal(), self.p())

    def by_client(self) -> np.ndarray:
        """The weights, NaN in rows that were never estimated."""
        found = self.weights.copy()
        found[~self.estimated] = np.nan
        return found

    def save_state(self) -> dict[str, object]:
        return {
            "weights": self.weights,
            "joined": self.joined,
            "estimated": self.estimated,
            "samples": self.samples,
        }

    @classmethod
    def load_state(cls, saved: dict[str, object]) -> "Graph":
        made = cls()
        made._rows = cast(np.ndarray, saved["weights"])
        made.joined = cast(np.ndarray, saved["joined"])
        made.estimated = cast(np.ndarray, saved["estimated"])
        made.samples = cast(np.ndarray, saved["samples"])
        return made
