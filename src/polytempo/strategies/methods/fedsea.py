"""FedSEA, reconstructed: a semi-asynchronous federated learning framework for extremely heterogeneous devices (Sun et
al., SenSys 2022).

Known here only from its abstract and from how EchoPFL (sections 7.1 and 8) describes it: the server predicts when
updates arrive and sets its synchronisation points by that, the clients' work is scheduled such that all of them are
aggregated about equally often, and nothing of slow devices is thrown away. The abstract also lets devices join that
cannot train the global model; that is not built here. This is the plainest method that fits. A point is set when the
last is over: for when a share of those in training would have arrived, all with their full work. A client that could
not do its full work until then does less, if that is still enough of it; else it trains in full, and arrives for some
later point. The server waits a little longer than it expects to, since predictions are not exact, but not when
everybody has come whom it awaits. Who comes in between waits for the point, and so does its update. The weights, the
share, the least work and the waiting are choices made here. The share was tried on digits, with one seed and 400
updates: .25 and .5 learned less than .1 and took longer.

Speeds are those of a client's last round, and the full work is the run's ``--epochs`` or ``--steps``. Of a client that
never came nothing can be predicted: it trains in full. While too few can be predicted for a point to be set, as in the
first round, the point is when that share has arrived."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pydantic import Field

from polytempo.core.events import Update
from polytempo.core.orders import Due, Order, Orders, SetTimer, Train
from polytempo.core.stateful import stateful
from polytempo.strategies.base.strategy import Strategy, strategy
from polytempo.strategies.parts.compass import FASTEST, ROUNDING, ArrivalGroup
from polytempo.strategies.parts.rounds import weighted_mean
from polytempo.strategies.parts.staleness import Polynomial, Staleness


@stateful
@dataclass(frozen=True, slots=True)
class Speed:
    """How a client did in its last round, and what its full work is."""

    seconds_per_step: float
    full: int


@stateful
@dataclass(frozen=True, slots=True)
class Awaited:
    """What a client in training began when, and when it is expected to arrive: inf if nothing is known of it."""

    began: float
    arrives: float


@strategy("fedsea")
class FedSEA(Strategy):
    """Reconstructed: the server aggregates at points in time, which it sets by when clients will have arrived, and
    clients do as much work as fits: ``w <- w + sum_i p_i delta_i`` over all that came since the last point,
    ``p_i ~ n_i s(tau_i)`` that sum to 1."""

    reconstructed = True

    share: float = Field(0.1, gt=0, le=1, description="of those in training, by whose arrival a point is set")
    least_work: float = Field(0.2, gt=0, le=1, description="share of its full work that a client does at least")
    latest_factor: float = Field(
        1.2, ge=1, description="the server waits for this many times the time until the expected arrival"
    )
    staleness: Staleness = Field(Polynomial(0.5), description="s(tau): constant, polynomial:A or hinge:A:B")

    def setup(self) -> None:
        self.speeds: dict[int, Speed] = {}
        self.training: dict[int, Awaited] = {}
        self.gathered: list[Update] = []
        """What came since the last point."""
        self.held: dict[int, bool] = {}
        """Clients that have handed in and wait for the point: have they said ready since."""
        self.points = 0
        self.point: ArrivalGroup | None = None
        """The next point and whom it awaits; None while it cannot be predicted."""

    def ready(self, client: int, now: float) -> Orders:
        if client in self.held:
            self.held[client] = True
            return None
        self.participation.rest(client)
        return self._go_on(now)

    def updated(self, update: Update, now: float) -> Orders:
        client = update.client
        seconds = (now - self.training[client].began) / max(update.steps, 1)
        self.speeds[client] = Speed(max(seconds, FASTEST), self.setting.work.steps_for(update.samples))
        self.gathered.append(update)
        self.held[client] = False
        return self._stop_awaiting(client, now)

    def fired(self, key: str, now: float) -> Orders:
        return self._synchronise(now) if self.point is not None and key == str(self.point.number) else None

    def left(self, client: int, now: float) -> Orders:
        """What the client handed in before still counts."""
        self.participation.leave(client)
        self.held.pop(client, None)
        return self._stop_awaiting(client, now)

    def forget(self, client: int) -> None:
        self.gathered = [update for update in self.gathered if update.client != client]
        self.speeds.pop(client, None)
        super().forget(client)

    def _stop_awaiting(self, client: int, now: float) -> Orders:
        """Nobody has to wait for this client any more."""
        self.training.pop(client, None)
        if self.point is not None:
            self.point.waiting.pop(client, None)
        return self._synchronise(now) if self._is_due() else self._go_on(now)

    def _is_due(self) -> bool:
        """Have all come whom the point awaits? If it is not predicted: has the share?"""
        if self.point is not None:
            return not self.point.waiting
        return len(self.gathered) >= self.share * (len(self.gathered) + len(self.training)) - ROUNDING

    def _synchronise(self, now: float) -> Iterator[Order]:
        if self.gathered:
            self.aggregate(sorted(self.gathered, key=lambda update: update.client))
        for client in [client for client, is_ready in self.held.items() if is_ready]:
            self.participation.rest(client)
        self.gathered, self.held, self.point = [], {}, None
        yield from self._go_on(now)

    def aggregate(self, updates: Sequence[Update]) -> None:
        weights = [self.weight(update) for update in updates]
        self.model.step(weighted_mean((update.delta for update in updates), weights))

    def weight(self, update: Update) -> float:
        """``n_i s(tau_i)``"""
        return update.weight * self.staleness(self.tau(update))

    def _go_on(self, now: float) -> Iterator[Order]:
        """Start those whose turn it is, for the next point, which is set if there is none."""
        picked = self.participation.fill()
        if self.point is None:
            expected = self._predicted(picked, now)
            if expected < math.inf:
                yield self._set_point(expected, now)
        for client in picked:
            yield self.order_for(client, now)

    def _predicted(self, picked: Sequence[int], now: float) -> float:
        """When the share of those in training, and of those who begin now, will have come, all with their full work.
        Of who is overdue, as of who never came, it is not known."""
        running = [training.arrives if training.arrives > now else math.inf for training in self.training.values()]
        arrivals = sorted(running + [self._arrival(client, None, now) for client in picked])
        return arrivals[math.ceil(self.share * len(arrivals) - ROUNDING) - 1] if arrivals else math.inf

    def _arrival(self, client: int, steps: int | None, now: float) -> float:
        speed = self.speeds.get(client)
        return math.inf if speed is None else now + speed.seconds_per_step * (steps or speed.full)

    def _set_point(self, expected: float, now: float) -> SetTimer:
        self.points += 1
        awaited = [client for client, training in self.training.items() if now < training.arrives <= expected]
        latest = now + self.latest_factor * (expected - now)
        self.point = ArrivalGroup(self.points, expected, latest, dict.fromkeys(awaited))
        return SetTimer(latest, str(self.points))

    def order_for(self, client: int, now: float) -> Train:
        """As much work as fits until the point, or the full work if too little does."""
        steps = self._fitting(client, now)
        self.training[client] = Awaited(now, self._arrival(client, steps, now))
        order = self.train(client, self.model, steps=steps)
        if self.point is None or steps is None:
            return order
        self.point.waiting[client] = None
        return replace(order, due=Due(self.point.number, self.point.expected, self.point.latest))

    def _fitting(self, client: int, now: float) -> int | None:
        """How many steps a client can do until the next point; None if they are too few or unknown."""
        speed = self.speeds.get(client)
        if self.point is None or speed is None:
            return None
        steps = math.floor((self.point.expected - now) / speed.seconds_per_step + ROUNDING)
        return min(steps, speed.full) if steps >= max(self.least_work * speed.full, 1) else None
