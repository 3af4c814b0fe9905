"""A scripted clock: clients of given speeds under a strategy, with no data and no model. Time moves when the test says
so, and training is a function that the test gives."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.orders import Due, Orders, Report, Send, SetTimer, Train
from polytempo.strategies import Strategy


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
class Arrived:
    """An update that a client handed in."""

    at: float
    client: int
    staleness: int
    late: bool


@dataclass
class OpenOrder:
    """What a client is doing: its order, when it began, the steps until it hands in, and the refreshes since."""

    order: Train
    began: float
    steps: int
    sends: list[Send] = field(default_factory=list)


def towards_its_own(client: int, steps: int, start: Tensor) -> Tensor:
    """Train towards a point of the client's own: more steps lead closer to it."""
    return torch.lerp(start, torch.full_like(start, float(client + 1)), 1 - 0.995**steps)


class ScriptedClock:
    """Drives a begun strategy. Client i needs ``seconds[i]`` per local step and has ``samples[i]`` samples. An update
    arrives before a timer of the same time. A silent client hands in only when ``hand_in`` says so."""

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
        self.arrived: list[Arrived] = []
        self.sent: list[Send] = []
        self.training: dict[int, OpenOrder] = {}
        self.silent: set[int] = set()
        self._events: list[tuple[float, bool, int, str]] = []  # time, is it a timer, client, key
        for client in range(len(seconds)):
            self._obey(strategy.ready(client, 0.0))

    def run(self, until: float = inf, updates: float = inf) -> None:
        """Go on to this time, or until this many updates have arrived in all."""
        while self._events and self._events[0][0] <= until and len(self.arrived) < updates:
            self.now, is_timer, client, key = heapq.heappop(self._events)
            if is_timer:
                self._obey(self.strategy.fired(key, self.now))
            else:
                self.hand_in(client, self.now)

    def hand_in(self, client: int, now: float) -> None:
        """The client hands in what it was ordered to train, and says ready."""
        self.now = now
        self._forget(client)
        self._arrive(client, self.training.pop(client))

    def pull(self, client: int, now: float) -> None:
        """The client asks for its model."""
        self.now = now
        self._obey(self.strategy.pulled(client, now))

    def silence(self, *clients: int) -> None:
        """These clients no longer hand in by themselves."""
        self.silent.update(clients)
        self._forget(*clients)

    def leave(self, client: int, now: float) -> None:
        """The client leaves. Its training is lost."""
        self.now = now
        self.silence(client)
        del self.training[client]
        self._obey(self.strategy.left(client, now))

    def _arrive(self, client: int, done: OpenOrder) -> None:
        order, last = done.order, done.sends[-1] if done.sends else done.order
        weights = self.trained(client, done.steps, last.weights)
        update = Update(client, last.version, last.weights, weights, self.samples[client], done.steps)
        late = order.due is not None and self.now > order.due.latest
        self.arrived.append(Arrived(self.now, client, self.strategy.tau(update), late))
        self._obey(self.strategy.updated(update, self.now))
        self._obey(self.strategy.ready(client, self.now))

    def _forget(self, *clients: int) -> None:
        self._events = [event for event in self._events if event[2] not in clients]
        heapq.heapify(self._events)

    def _obey(self, orders: Orders) -> None:
        for order in orders or ():
            if isinstance(order, SetTimer):
                heapq.heappush(self._events, (order.at, True, -1, order.key))
            elif isinstance(order, Train):
                self._train(order)
            elif isinstance(order, Send):
                self.sent.append(order)
                if order.client in self.training:
                    self.training[order.client].sends.append(order)
            elif order.client in self.training:
                self._report(order)

    def _train(self, order: Train) -> None:
        client, steps = order.client, order.work.steps_for(self.samples[order.client])
        assert client not in self.training, f"client {client} was ordered to train while it is training"
        self.training[client] = OpenOrder(order, self.now, steps)
        self.ordered.append(Ordered(self.now, client, steps, order.due))
        if client not in self.silent:
            heapq.heappush(self._events, (self.now + steps * self.seconds[client], False, client, ""))

    def _report(self, order: Report) -> None:
        """The client hands in now, with the steps that it has done."""
        client, training = order.client, self.training[order.client]
        training.steps = min(training.steps, int((self.now - training.began) / self.seconds[client]))
        self._forget(client)
        heapq.heappush(self._events, (self.now, False, client, ""))
