"""The collaboration graph: how much each client's model takes from everybody else's (Liu et al., PACE, section III)."""

import numpy as np

from polytempo.core.state import Attributes, stateful


def project_simplex(v: np.ndarray) -> np.ndarray:
    """The nearest point to v with ``w >= 0`` and ``sum w = 1``, exactly (Held, Wolfe and Crowder, 1974): v less a
    threshold, cut off at 0. It is the solution of ``min ||w - v||^2``, for which others call a QP solver."""
    descending = np.sort(v)[::-1]
    thresholds = (np.cumsum(descending) - 1) / np.arange(1, len(v) + 1)
    kept = np.count_nonzero(descending > thresholds)
    return np.maximum(v - thresholds[kept - 1], 0)


@stateful
class Graph(Attributes):
    """``W[i, j]``, the weight of client j in the model of client i, by client number. A row that was never estimated
    counts as p, the shares of all data: ``p_j = n_j / n``."""

    def __init__(self) -> None:
        self.weights = np.zeros((0, 0))
        self.estimated = np.zeros(0, bool)
        self.samples = np.zeros(0)
        """NaN before a client first handed in: it is then taken to have as many as the others on average."""
        self.passed = np.zeros(0)
        """For each client j ``sum over pi_j of W_j.``: of those whose models have gone into j's since j handed in."""

    def __len__(self) -> int:
        return len(self.samples)

    def reach(self, client: int) -> None:
        """Have a row for this client, and for all of a lower number."""
        more = client + 1 - len(self)
        if more > 0:
            self.weights = np.pad(self.weights, (0, more))
            self.estimated = np.pad(self.estimated, (0, more))
            self.samples = np.pad(self.samples, (0, more), constant_values=np.nan)
            self.passed = np.pad(self.passed, (0, more))

    def p(self) -> np.ndarray:
        known = self.samples[~np.isnan(self.samples)]
        samples = np.where(np.isnan(self.samples), known.mean() if len(known) else 1.0, self.samples)
        return samples / samples.sum()

    def handed_in(self, client: int, samples: int) -> None:
        """A client's own model takes the place of what others had put into it: ``pi_i <- ()``."""
        self.samples[client] = samples
        self.passed[client] = 0

    def put(self, client: int, row: np.ndarray) -> None:
        self.weights[client, : len(row)] = row
        self.estimated[client] = True

    def shares(self, client: int) -> np.ndarray:
        """``alpha_ij = W_ji / (W_jj + sum over pi_j of W_j.)`` for every j, client i now being part of each pi_j (Eq. 6
        and 10); 0 for i itself. Repeats count."""
        p = self.p()
        column = np.where(self.estimated, self.weights[:, client], p[client])
        column[client] = 0
        own = np.where(self.estimated, self.weights.diagonal(), p)
        self.passed += column
        total = own + self.passed
        return np.divide(column, total, out=np.zeros(len(self)), where=total > 0)

    def by_client(self) -> np.ndarray:
        """The weights, NaN in rows that were never estimated."""
        return np.where(self.estimated[:, None], self.weights, np.nan)
