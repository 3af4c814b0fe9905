"""The service driver: what ``sim`` is to a virtual clock, this is to real time. It is a pure function of its events, so
that a journal of events is all that has to be kept safe; it does no I/O and reads no clock."""

import heapq
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from polytempo.core.branch import branches
from polytempo.core.errors import StrategyError
from polytempo.core.events import Update
from polytempo.core.flight import Flight
from polytempo.core.model.vectors import trained_entries
from polytempo.core.orders import Due, Order, Orders, Report, Send, SetTimer, Train
from polytempo.core.state import digest, pack
from polytempo.core.stateful import stateful
from polytempo.core.status import Status
from polytempo.serve.state.events import Event, Push
from polytempo.serve.state.measured import Measured
from polytempo.strategies.base.contract import check_order, check_upload
from polytempo.strategies.base.strategy import Strategy


@stateful
@dataclass
class Member:
    """What the service knows of a client."""

    status: int = int(Status.AWAY)
    tasks: int = 0
    """Train orders so far."""
    updates: int = 0
    answered: int = 0
    """Number of the last task whose update was applied."""
    version: int | None = None
    """What its last update came from, ..."""
    staleness: int | None = None
    """... how stale that was, ..."""
    updated_at: float | None = None
    """... when it came, ..."""
    due: Due | None = None
    """... and when it was awaited, by a strategy that plans arrivals."""
    accuracy: float | None = None
    """That it last reported, ..."""
    loss: float | None = None
    """... with the loss."""
    used: float | None = None
    """Accuracy of the model that it works with, as it last reported, ..."""
    alone: float | None = None
    """... and of one that it trains alone."""
    joined_at: float = 0.0
    status_since: float = 0.0
    idle_seconds: float = 0.0
    """Ready and without work, until it last changed its status."""
    measured: Measured = field(default_factory=Measured)

    def idle_share(self, now: float) -> float:
        """The share of the time since it first joined in which it was ready and had nothing to do."""
        waiting = now - self.status_since if self.status == Status.READY else 0.0
        return (self.idle_seconds + waiting) / (now - self.joined_at) if now > self.joined_at else 0.0


@dataclass(frozen=True, slots=True)
class Dispatched:
    """An order on its way to a client."""

    number: int
    order: Train | Send | Report
    count: int
    """Of a Train order: tasks that the client was given before."""
    task: int
    """Of a Send or Report: the task it belongs to; 0 if the client is not in training."""
    answered: int = 0
    """Of a Train order: the client's last task whose update was applied; 0 if there is none."""


class Service:
    """One strategy, begun, and its clients. ``apply`` events in order; equal sequences end in equal digests."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self.setting = strategy.setting
        self.schema = strategy.setting.schema
        self.now = 0.0
        self.number = 0
        """Of the last order."""
        self.updates = 0
        self.members: dict[int, Member] = {}
        self.flights: dict[int, Flight] = {}
        self.timers: list[tuple[float, int, str]] = []

    # Events.

    def apply(self, event: Event) -> list[Dispatched]:
        """Tell the strategy, and do what it orders."""
        self.now = event.at
        client = event.client
        if event.kind == "joined":
            self._become(client, Status.PAUSED)
            return self._obey(self.strategy.joined(client, self.now))
        if event.kind == "ready":
            return self._ready(client)
        if event.kind == "updated":
            assert event.push is not None
            return self._updated(client, event.push)
        if event.kind == "pulled":
            return self._obey(self.strategy.pulled(client, self.now))
        if event.kind == "fired":
            self._take_timer(event.key)
            return self._obey(self.strategy.fired(event.key, self.now))
        if event.kind == "dropped":
            with suppress(StrategyError):  # whatever set it may have been left out too
                self._take_timer(event.key)
            return []
        if event.kind == "left":
            self._become(client, Status.AWAY)
            self.flights.pop(client, None)
            return self._obey(self.strategy.left(client, self.now))
        self._renumber(event.number, event.since)
        return []

    def misfit(self, event: Event) -> str | None:
        """Why the event cannot have happened to the service as it is; None if it can. Nothing changes."""
        client = event.client
        if event.kind == "updated":
            assert event.push is not None
            try:
                self.update_of(client, event.push)
            except StrategyError as error:
                return str(error)
        if event.kind in ("ready", "pulled", "left") and not self.is_member(client):
            return f"client {client} has not joined"
        if event.kind == "fired" and all(key != event.key for _, _, key in self.timers):
            return f"no timer {event.key!r} is set"
        return None

    def _take_timer(self, key: str) -> None:
        """Remove the first timer with this key."""
        found = min((timer for timer in self.timers if timer[2] == key), default=None)
        if found is None:
            raise StrategyError(f"no timer {key!r} is set")
        self.timers.remove(found)
        heapq.heapify(self.timers)

    def _renumber(self, number: int, since: int | None) -> None:
        """Number orders from here on. Open tasks with an order beyond ``since`` are other ones than their clients hold:
        they get numbers that no client knows, so that nobody answers one for the other."""
        self.number = number
        for flight in self.flights.values():
            if since is not None and max(flight.latest, flight.reported) > since:
                self.number = flight.renumber(self.number)

    def forget(self, client: int) -> None:
        """Let a client leave, and keep nothing of it but what models have learnt from it and the orders that others
        were given."""
        if self.is_member(client):
            self.apply(Event("left", self.now, client))
        self.strategy.forget(client)
        del self.members[client]

    def _ready(self, client: int) -> list[Dispatched]:
        self._become(client, Status.READY)
        return self._obey(self.strategy.ready(client, self.now))

    def _updated(self, client: int, push: Push) -> list[Dispatched]:
        update = self.update_of(client, push)
        member = self.members[client]
        member.version, member.staleness = update.version, self.strategy.tau(update)
        member.updates, member.answered, member.updated_at = member.updates + 1, push.task, self.now
        flight = self.flights[client]
        member.due = flight.order.due
        member.measured.note_round(self.now - flight.dispatched, push.steps, push.sent_bytes, push.sent_seconds)
        if push.accuracy is not None:
            member.accuracy, member.loss = push.accuracy, push.loss
        if push.used is not None:
            member.used, member.alone = push.used, push.alone
        self.updates += 1
        del self.flights[client]
        self._become(client, Status.PAUSED)
        orders = self._obey(self.strategy.updated(update, self.now))
        return orders + self._ready(client) if push.ready else orders

    def update_of(self, client: int, push: Push) -> Update:
        """The update as strategies know it, with the model that it really came from."""
        flight = self.flights.get(client)
        base = None if flight is None or flight.number != push.task else flight.base(push.base, push.chosen)
        if base is None:
            raise StrategyError(f"client {client} has no open task {push.task} with a model {push.base}")
        start, version = base
        told = (push.weights, push.samples, push.steps, push.chosen, push.answers)
        return Update(client, version, start, *told, jury=push.jury)

    def _become(self, client: int, status: Status) -> None:
        member = self.members.get(client)
        if member is None:
            member = self.members[client] = Member(joined_at=self.now)
        else:
            was_there, is_there = member.status != Status.AWAY, status != Status.AWAY
            member.measured.note_presence(self.now - member.status_since, was_there, is_there)
        if member.status == Status.READY:
            member.idle_seconds += self.now - member.status_since
        member.status, member.status_since = int(status), self.now

    # Orders.

    def _obey(self, orders: Orders) -> list[Dispatched]:
        sent = [self._dispatch(order) for order in orders or ()]
        return [order for order in sent if order is not None]

    def _dispatch(self, order: Order) -> Dispatched | None:
        check_order(order, None if isinstance(order, SetTimer) else self._status(order.client))
        self.number += 1
        if isinstance(order, SetTimer):
            heapq.heappush(self.timers, (max(order.at, self.now), self.number, order.key))
            return None
        flight = self.flights.get(order.client)
        if isinstance(order, Train):
            check_upload(order, trained_entries(self.schema, order.mask, order.trainable))
            member = self.members[order.client]
            self.flights[order.client] = Flight(self.number, order, member.tasks, self.now)
            self._become(order.client, Status.TRAINING)
            member.tasks += 1
            return Dispatched(self.number, order, member.tasks - 1, 0, member.answered)
        if flight is not None:
            if isinstance(order, Send):
                flight.refresh(self.number, order)
                flight.forget_oldest()
            else:
                flight.reported = self.number
        return Dispatched(self.number, order, 0, 0 if flight is None else flight.number)

    def _status(self, client: int) -> Status | None:
        return Status(self.members[client].status) if client in self.members else None

    # Questions.

    def is_member(self, client: int) -> bool:
        return client in self.members and self.members[client].status != Status.AWAY

    def open_task(self, client: int) -> int:
        """Number of the client's open task; 0 if it has none."""
        return self.flights[client].number if client in self.flights else 0

    def task_again(self, client: int) -> list[Dispatched]:
        """A client's open task, and what was sent after it."""
        flight = self.flights[client]
        task = Dispatched(flight.number, flight.order, flight.count, 0, self.members[client].answered)
        return [task, *self.missed(client, flight.number)]

    def missed(self, client: int, heeded: int) -> list[Dispatched]:
        """What belongs to a client's open task and came after the last order that it heeded. Of several refreshes the
        last one is enough: without steps in between they come to the same."""
        flight = self.flights[client]
        orders: list[Dispatched] = []
        missed = [(number, send) for number, send in flight.sends if number > heeded]
        if missed:
            number, last = missed[-1]
            rebase = all(send.rebase for _, send in missed)
            orders.append(Dispatched(number, replace(last, rebase=rebase), 0, flight.number))
        if flight.reported > heeded:
            orders.append(Dispatched(flight.reported, Report(client), 0, flight.number))
        return orders

    def version_of(self, weights: Tensor) -> int:
        """The version of the branch that has these weights now; -1 if none has."""
        found = (branch.version for _, branch in branches(self.strategy.save_state()) if branch.weights is weights)
        return next(found, -1)

    def sharing(self, client: int) -> int:
        """How many of the clients that are there share this client's model, itself among them."""
        branch = self.strategy.cluster_of(client)
        return sum(self.strategy.cluster_of(other) == branch for other in self.members if self.is_member(other))

    def first_model(self) -> Tensor:
        """What a client that nobody has met would be served now."""
        return self.strategy.model_for(max(self.members, default=-1) + 1)

    def next_timer(self) -> float | None:
        return self.timers[0][0] if self.timers else None

    def digest(self) -> str:
        """Equal digests mean bit-identical state."""
        return digest(self.save_state())

    # State.

    _state = ("now", "number", "updates", "members", "flights", "timers")

    def save_state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._state} | {"strategy": self.strategy.save_state()}

    def frozen(self) -> tuple[str, list[Tensor]]:
        """The state, packed, as it is now whatever happens next. Models that were sent never change and are not
        copied; a strategy's own tensors may."""
        text, tensors = pack(self.save_state())
        sent = {id(tensor) for flight in self.flights.values() for tensor in flight.tensors()}
        return text, [tensor if id(tensor) in sent else tensor.clone() for tensor in tensors]

    def load_state(self, saved: dict[str, Any]) -> None:
        for name in self._state:
            setattr(self, name, saved[name])
        self.strategy.load_state(saved["strategy"])
