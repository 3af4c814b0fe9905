"""FedAC, written from Zang et al. (2024) as PACE's comparison sets it, for clients with plain SGD: the weights, the
prospective momentum, and the correction as in SCAFFOLD, where C is the mean over all clients."""

import numpy as np


class Server:
    def __init__(self, initial: np.ndarray, clients: int, size: int, b1: float, b2: float, eta: float, lr: float):
        self.model = initial
        self.size, self.b1, self.b2, self.eta, self.lr = size, b1, b2, eta, lr
        self.m, self.v = np.zeros_like(initial), np.zeros_like(initial)
        self.buffer: list[tuple[float, np.ndarray]] = []
        self.c_i = np.zeros((clients, len(initial)))
        self.sent_out: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        """Clients in training: the model and C - C_i that they were sent."""

    def sent(self, client: int) -> None:
        self.sent_out[client] = self.model, self.c_i.mean(0) - self.c_i[client]

    def received(self, client: int, delta: np.ndarray, samples: int, steps: int) -> None:
        start, correction = self.sent_out.pop(client)
        way = self.model - start
        lengths = np.linalg.norm(way) * np.linalg.norm(delta)
        cosine = way @ delta / lengths if np.linalg.norm(way) > 1e-9 else 0.0
        self.buffer.append((max(cosine, 0.1), delta))
        self.c_i[client] = -delta / (self.lr * steps) - correction
        if len(self.buffer) < self.size:
            return
        d = sum(r * delta for r, delta in self.buffer) / sum(r for r, _ in self.buffer)
        self.m = self.b1 * self.m + (1 - self.b1) * d
        self.v = self.b2 * self.v + (1 - self.b2) * d**2
        ahead = self.b1 * self.m + (1 - self.b1) * d
        self.model = self.model + self.eta * ahead / (np.sqrt(self.v) + 1e-8)
        self.buffer = []
