"""What the simulator keeps of every client, one number each."""

import numpy as np

from polytempo.core.stateful import Attributes, stateful
from polytempo.core.status import Status


@stateful
class Clients(Attributes):
    """Arrays by client number."""

    def __init__(self, clients: int) -> None:
        self.status = np.zeros(clients, np.uint8)
        self.orders = np.zeros(clients, np.int64)
        """Train orders so far."""
        self.updates = np.zeros(clients, np.int64)
        self.generation = np.zeros(clients, np.int64)
        """How often its data have drifted, ..."""
        self.trained_on = np.full(clients, -1, np.int64)
        """... and how often when it last trained; -1 if it never has."""
        self.ready_since = np.zeros(clients)
        self.idle = np.zeros(clients)
        """Seconds, ready and without work, until the last order."""

    def __len__(self) -> int:
        return len(self.status)

    def status_of(self, client: int) -> Status | None:
        """None if there is no such client."""
        return Status(self.status[client]) if 0 <= client < len(self) else None

    def idle_shares(self, now: float, joined: np.ndarray) -> np.ndarray:
        """For each client the share of the time since it joined in which it was ready and had nothing to do."""
        waiting = np.where(self.status == Status.READY, now - self.ready_since, 0.0)
        there = np.maximum(now - joined, np.finfo(float).tiny)
        return (self.idle + waiting) / there
