"""A virtual clock for tests: clients of given speeds under a strategy that plans arrivals, moved by hand or until a
time."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.orders import Due, Orders, SetTimer, Train
from polytempo.strategies.base.strategy import Strategy, parameters
from polytempo.strategies.parts.arrival_groups import Arrival, ArrivalGroups
from polytempo.testing.building import begun, vector


@dataclass(frozen=True)
class Ordered:
    """A training that a client was ordered to do."""

    at: float
    client: int
    steps: int
    due: Due | None

    @property
    def group(self) -> int | None:
        return None if self.due is None else self.due.group


@dataclass(frozen=True)
class Handed:
    at: float
    client: int
    staleness: int
    late: bool


def towards_its_own(client: int, steps: int, start: Tensor) -> Tensor:
    """Training that pulls the model to a point of the client's own, the more the more steps."""
    return torch.lerp(start, torch.full_like(start, float(client + 1)), 1 - 0.995**steps)


class Clockwork:
    """Clients of a strategy on a virtual clock; each needs so many seconds per step. Arrivals come before timers of the
    same time. Who is silent hands in only when told to."""

    def __init__(
        self,
        strategy: Strategy,
        seconds: Sequence[float],
        samples: Sequence[int] | None = None,
        trained: Callable[[int, int, Tensor], Tensor] = towards_its_own,
    ) -> None:
        self.strategy: Any = strategy
        self.seconds, self.samples, self.trained = list(seconds), samples or [1] * len(seconds), trained
        self.now = 0.0
        self.ordered: list[Ordered] = []
        self.handed: list[Handed] = []
        self.training: dict[int, Train] = {}
        self.silent: set[int] = set()
        self._events: list[tuple[float, bool, int, str]] = []  # time, is it a timer, client, key
        for client in range(len(seconds)):
            self._obey(strategy.ready(client, 0.0))

    @property
    def groups(self) -> list[list[int]]:
        """Members of the open groups."""
        return [sorted((*group.waiting, *group.arrived)) for group in self.strategy.compass.groups.values()]

    def run(self, until: float = inf, updates: float = inf) -> None:
        """Go on until after this time, or until so many updates were handed in in all."""
        while self._events and self._events[0][0] <= until and len(self.handed) < updates:
            self.now, is_timer, client, key = heapq.heappop(self._events)
            if is_timer:
                self._obey(self.strategy.fired(key, self.now))
            else:
                self.hand_in(client, self.now)

    def hand_in(self, client: int, now: float) -> None:
        self.now, order = now, self.training.pop(client)
        steps = order.work.steps
        assert steps is not None
        weights = self.trained(client, steps, order.weights)
        update = Update(client, order.version, order.weights, weights, self.samples[client], steps)
        late = order.due is not None and now > order.due.latest
        self.handed.append(Handed(now, client, self.strategy.tau(update), late))
        self._obey(self.strategy.updated(update, now))
        self._obey(self.strategy.ready(client, now))

    def silence(self, *clients: int) -> None:
        """These clients do not hand in what they are training, nor anything after it."""
        self.silent.update(clients)
        self._events = [event for event in self._events if event[2] not in clients]
        heapq.heapify(self._events)

    def leave(self, client: int, now: float) -> None:
        self.now = now
        self.silence(client)
        del self.training[client]
        self._obey(self.strategy.left(client, now))

    def _obey(self, orders: Orders) -> None:
        for order in orders or ():
            if isinstance(order, SetTimer):
                heapq.heappush(self._events, (order.at, True, -1, order.key))
            else:
                assert isinstance(order, Train)
                self._train(order)

    def _train(self, order: Train) -> None:
        client, steps = order.client, order.work.steps
        assert client not in self.training
        assert steps is not None
        self.training[client] = order
        self.ordered.append(Ordered(self.now, client, steps, order.due))
        if client not in self.silent:
            heapq.heappush(self._events, (self.now + steps * self.seconds[client], False, client, ""))


@parameters
class Keeper(ArrivalGroups):
    """Only keeps what it aggregated: per version the clients and models."""

    def setup(self) -> None:
        self.aggregated: list[list[tuple[int, float]]] = []

    def weight(self, update: Update) -> float:
        return 1.0

    def aggregate(self, arrivals: Sequence[Arrival], now: float) -> None:
        self.aggregated.append([(arrival.update.client, arrival.update.weights.item()) for arrival in arrivals])
        self.model.step(torch.zeros(1))


def clockwork(*seconds: float, fewest: int = 20, most: int = 100, **given: Any) -> Clockwork:
    keeper = Keeper(q_min=fewest, q_max=most, **given)
    return Clockwork(begun(keeper, vector(0.0), len(seconds)), seconds)
