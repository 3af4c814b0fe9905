"""CASA, written from the paper of Liu et al. (2024) alone for one cluster that does not split: the decays of Eq. 6 to 8
(with ``log2(|C| + 3)``, appendix A.2), the mixing of Eq. 9, the similarities of Eq. 10 and the buffers of Algorithm 2.
What is compared are deltas. A member that does not train counts as starting now; of equals, the older entry stays."""

import numpy as np


class Server:
    def __init__(self, initial: np.ndarray, clients: int, alpha0: float, kappa: float, budget: int) -> None:
        self.n, self.alpha0, self.kappa, self.budget = clients, alpha0, kappa, budget
        self.models = [initial]
        self.starts: dict[int, int] = {}
        self.alpha = dict.fromkeys(range(clients), 0.0)
        self.similarity = {(i, i): 1.0 for i in range(clients)}
        self.buffers: list[tuple[int, int, np.ndarray]] = []
        """Owner, sender and what it sent, in the order in which they came."""

    def omega(self, t: int) -> float:
        return (np.e / 2.8) ** (self.kappa * t)

    def sent(self, client: int) -> None:
        self.starts[client] = len(self.models) - 1

    def received(self, i: int, delta: np.ndarray, samples: int, steps: int) -> None:
        t, version = len(self.models), len(self.models) - 1
        start = self.starts.pop(i)
        for owner, j, other in self.buffers:  # Eq. 10
            if owner == i:
                cosine = delta @ other / np.linalg.norm(delta) / np.linalg.norm(other)
                self.similarity[i, j] = self.similarity[j, i] = cosine
        self.buffers = [entry for entry in self.buffers if entry[0] != i]
        alpha_c = self.alpha0 * self.omega(t) / np.log2(self.n + 3)
        r_c = self.n * (2 - self.omega(t))
        tau = version - start
        self.alpha[i] = alpha_c if tau <= r_c else alpha_c / np.sqrt(tau)
        self.offer(i, delta, start, version, r_c)
        self.models.append(self.alpha[i] * (self.models[start] + delta) + (1 - self.alpha[i]) * self.models[-1])

    def offer(self, i: int, delta: np.ndarray, start: int, version: int, r_c: float) -> None:
        for j in range(self.n):
            gap = abs(self.starts.get(j, version) - start)
            recurring = any((owner, sender) == (j, i) for owner, sender, _ in self.buffers)
            if j != i and gap < r_c and not recurring:
                self.buffers.append((j, i, delta))
        if len(self.buffers) > self.budget:
            places = range(len(self.buffers))
            ranked = sorted(places, key=lambda place: self.rank(*self.buffers[place][:2]))
            self.buffers = [self.buffers[place] for place in sorted(ranked[: self.budget])]

    def rank(self, owner: int, sender: int) -> tuple[bool, float]:
        return (owner, sender) in self.similarity, self.alpha[owner]
