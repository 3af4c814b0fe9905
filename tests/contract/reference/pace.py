"""PACE, written from the paper of Liu et al. alone but for the order of lines 5 and 7 (a buffer takes what its client
trained before it is sent out), without multicasts. The paper has p_j = n_j / n; a server does not know n_j before
client j comes, so every p is as known when an update arrives, and who has not come counts as the others on average."""

import numpy as np


def solved(p: np.ndarray, s: np.ndarray, gamma: float) -> np.ndarray:
    """``min ||W - p||^2 + gamma s.W, W >= 0, sum W = 1`` (Eq. 2): stationary at ``max(p - gamma s / 2 - nu, 0)``; the
    multiplier nu by bisection."""
    free = p - gamma * s / 2
    low, high = free.min() - 1, free.max()
    for _ in range(200):
        nu = (low + high) / 2
        low, high = (nu, high) if np.maximum(free - nu, 0).sum() > 1 else (low, nu)
    return np.maximum(free - low, 0)


class Server:
    def __init__(self, initial: np.ndarray, clients: int, gamma: float, a: float) -> None:
        self.initial, self.gamma, self.a = initial, gamma, a
        self.phi = np.tile(initial, (clients, 1))
        self.rows: dict[int, np.ndarray] = {}
        self.passed: list[list[float]] = [[] for _ in range(clients)]
        """``W_j.`` of those in pi_j."""
        self.n = np.full(clients, np.nan)
        self.t = 0
        self.starts: dict[int, tuple[int, np.ndarray]] = {}

    def p(self) -> np.ndarray:
        n = np.where(np.isnan(self.n), np.nanmean(self.n), self.n)
        return n / n.sum()

    def sent(self, client: int) -> None:
        self.starts[client] = self.t, self.phi[client].copy()

    def received(self, i: int, delta: np.ndarray, samples: int, steps: int) -> None:
        began, start = self.starts.pop(i)
        theta, decay = start + delta, (1 + self.t - began) ** -self.a
        self.t += 1
        self.n[i] = samples
        self.phi[i], self.passed[i] = theta, []  # line 7
        likeness = [self.cosine(theta, phi) for phi in self.phi]
        likeness[i] = 1.0
        for j in range(len(self.phi)):  # lines 10 to 12, Eq. 5, 6, 10 and 11
            if j != i:
                row = self.rows.get(j, self.p())
                self.passed[j].append(row[i])
                total = row[j] + sum(self.passed[j])
                alpha = row[i] / total * decay if total else 0.0
                self.phi[j] = (1 - alpha) * self.phi[j] + alpha * theta
        self.rows[i] = solved(self.p(), -np.array(likeness), self.gamma)  # line 8

    def cosine(self, a: np.ndarray, b: np.ndarray) -> float:
        a, b = a - self.initial, b - self.initial
        lengths = np.linalg.norm(a) * np.linalg.norm(b)
        return float(a @ b / lengths) if lengths else 0.0
