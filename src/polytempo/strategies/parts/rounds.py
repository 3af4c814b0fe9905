"""Synchronous rounds: pick, wait for everyone picked, aggregate. The base of every synchronous method."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.orders import Orders
from polytempo.strategies.base.strategy import Setting, Strategy


class Rounds(Strategy, ABC):
    """A strategy that works in rounds. A method says what to make of a round's updates in ``aggregate``."""

    def begin(self, setting: Setting) -> None:
        self.waiting: dict[int, None] = {}
        """Members of the open round that have not handed in."""
        self.arrived: list[Update] = []
        super().begin(setting)

    @abstractmethod
    def aggregate(self, updates: Sequence[Update], now: float) -> None:
        """Make the next model from the round's updates, which come in the order of the clients' numbers."""

    def ready(self, client: int, now: float) -> Orders:
        self.participation.rest(client)
        return self._open(now)

    def updated(self, update: Update, now: float) -> Orders:
        self.waiting.pop(update.client)
        self.arrived.append(update)
        self._close(now)
        return None

    def left(self, client: int, now: float) -> Orders:
        self.participation.leave(client)
        if client in self.waiting:
            self.waiting.pop(client)
            self._close(now)
        return self._open(now)

    def forget(self, client: int) -> None:
        self.arrived = [update for update in self.arrived if update.client != client]
        super().forget(client)

    def _open(self, now: float) -> Orders:
        if self.waiting:
            return None
        self.waiting = dict.fromkeys(sorted(self.participation.begin_round()))
        return self._start(list(self.waiting), now)

    def _close(self, now: float) -> None:
        if not self.waiting and self.arrived:
            self.aggregate(sorted(self.arrived, key=lambda update: update.client), now)
            self.arrived = []


def mean_delta(updates: Sequence[Update]) -> Tensor:
    """``sum_i n_i / n delta_i`` over the updates of a round."""
    return weighted_mean((update.delta for update in updates), [update.weight for update in updates])


def plain_mean_delta(updates: Sequence[Update]) -> Tensor:
    """The mean of the deltas that are not held back, whatever their samples."""
    return weighted_mean((update.delta for update in updates), [float(not update.held_back) for update in updates])


def weighted_mean(vectors: Iterable[Tensor], weights: Sequence[float]) -> Tensor:
    """``sum_i w_i v_i / sum_i w_i``; the plain mean where no vector has any weight."""
    if not any(weights):
        weights = [1.0] * len(weights)
    total, mean = sum(weights), None
    for vector, weight in zip(vectors, weights, strict=True):
        mean = torch.zeros_like(vector) if mean is None else mean
        mean.add_(vector, alpha=weight / total)
    assert mean is not None
    return mean
