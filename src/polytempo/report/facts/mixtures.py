"""The mixtures of clients' data, as they are and as the server estimates them."""

from dataclasses import dataclass

import numpy as np

from polytempo.report.run import Run

CLIENTS = 6  # whose mixtures are shown over time


@dataclass(frozen=True, eq=False)
class EstimatedMixtures:
    """The exchanges, in order of time, of which both mixtures are known: when they were, whose, and the shares of the
    clusters (exchanges x clusters)."""

    times: np.ndarray
    clients: np.ndarray
    true: np.ndarray
    estimated: np.ndarray

    def __len__(self) -> int:
        return len(self.times)

    def of(self, client: int) -> "EstimatedMixtures":
        """Those of one client."""
        return self.take(np.flatnonzero(self.clients == client))

    def last_quarter(self) -> "EstimatedMixtures":
        """The last quarter of them, one at least."""
        return self.take(np.arange(len(self) - max(1, len(self) // 4), len(self)))

    def take(self, kept: np.ndarray) -> "EstimatedMixtures":
        return EstimatedMixtures(self.times[kept], self.clients[kept], self.true[kept], self.estimated[kept])


def mixtures(run: Run) -> EstimatedMixtures:
    """What a run knows of its clients' mixtures."""
    known = [row for row in run.exchange_log if row.get("mixture") is not None and row.get("estimate") is not None]
    rows = [row for row in known if len(row["mixture"]) == len(row["estimate"])]  # else they are of other clusters
    shape = (len(rows), len(rows[0]["mixture"]) if rows else 0)
    return EstimatedMixtures(
        np.array([row["time"] for row in rows], float),
        np.array([row["client"] for row in rows], int),
        np.array([row["mixture"] for row in rows], float).reshape(shape),
        np.array([row["estimate"] for row in rows], float).reshape(shape),
    )


def uniform_kl(true: np.ndarray) -> np.ndarray:
    """KL(true || uniform) of every row of shares; a share of nothing adds nothing."""
    clusters = true.shape[1]
    return np.sum(true * np.log(np.where(true > 0, true * clusters, 1.0)), axis=1)


def busiest_clients(found: EstimatedMixtures, most: int = CLIENTS) -> list[int]:
    """The clients with most exchanges, of as many exchanges the first numbers; in order of their numbers."""
    clients, exchanges = np.unique(found.clients, return_counts=True)
    return sorted(clients[np.argsort(-exchanges, kind="stable")][:most].tolist())
