"""Asynchronous federated optimization, written from Xie et al. (2019) alone: the server of Algorithm 1 with the
functions of staleness of section 5.2. A model that was trained from the newest one has no staleness."""

import numpy as np


def constant(staleness: int) -> float:
    return 1.0


def polynomial(a: float):
    return lambda staleness: 1 / (staleness + 1) ** a


def hinge(a: float, b: float):
    def s(staleness: int) -> float:
        if staleness <= b:
            return 1.0
        return 1 / (a * (staleness - b) + 1)

    return s


class Server:
    def __init__(self, initial: np.ndarray, alpha: float, s) -> None:
        self.models = [initial]
        self.alpha, self.s = alpha, s
        self.stamps: dict[int, int] = {}

    def sent(self, client: int) -> None:
        self.stamps[client] = len(self.models) - 1

    def received(self, client: int, delta: np.ndarray, samples: int, steps: int) -> None:
        stamp = self.stamps.pop(client)
        alpha = self.alpha * self.s(len(self.models) - 1 - stamp)
        new = self.models[stamp] + delta
        self.models.append((1 - alpha) * self.models[-1] + alpha * new)
