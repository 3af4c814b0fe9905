"""A strategy and a second formulation of its method, fed with the same random updates."""

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch

from polytempo.core.events import Update
from polytempo.core.orders import Train
from polytempo.strategies import Strategy
from polytempo.testing import begun


class Server(Protocol):
    """What a second formulation in ``contract/reference`` is told."""

    def sent(self, client: int) -> None: ...

    def received(self, client: int, delta: np.ndarray, samples: int, steps: int) -> None: ...


def initial(size: int = 6) -> np.ndarray:
    return np.linspace(-1, 1, size, dtype=np.float32)


def feed(
    strategy: Strategy, server: Server, seed: int, clients: int = 6, updates: int = 60, lean: float = 0.0
) -> Iterator[dict[int, Train]]:
    """Clients of unlike speed rest, train, and come back with a random delta around ``lean`` and other samples and
    steps each time. After every update: the orders of those in training."""
    rng = np.random.default_rng(seed)
    begun(strategy, torch.from_numpy(initial()), clients)
    pace, training = rng.random(clients) ** 2 + 0.02, dict[int, Train]()
    for _ in range(updates):
        resting = [client for client in range(clients) if client not in training]
        for client in [one for one in resting if rng.random() < 0.6] or ([] if training else resting[:1]):
            (training[client],) = strategy.ready(client, 0.0)  # type: ignore[misc,union-attr]
            server.sent(client)
        there = sorted(training)
        client = int(rng.choice(there, p=pace[there] / pace[there].sum()))
        order = training.pop(client)
        delta = (lean + rng.normal(size=len(order.weights))).astype(np.float32)
        samples, steps = int(rng.integers(1, 20)), int(rng.integers(1, 9))
        weights = order.weights + torch.from_numpy(delta)
        list(strategy.updated(Update(client, order.version, order.weights, weights, samples, steps), 1.0) or ())
        server.received(client, delta.astype(np.float64), samples, steps)
        yield training
