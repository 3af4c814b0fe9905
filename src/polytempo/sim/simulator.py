"""The simulator: a virtual clock, a heap of events, and a strategy that never learns that time is not real.

Virtual time comes from the device model only, never from how long this machine took. Training runs ahead on worker
threads (``lookahead``); since one client's result never depends on who else is in flight, a run is bit-identical
whatever the number of workers."""

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from polytempo.core.errors import StrategyError, UserError
from polytempo.core.events import Update
from polytempo.core.orders import Due, Order, Orders, Report, Send, SetTimer, Train
from polytempo.core.status import Status
from polytempo.core.streams import stream
from polytempo.learn.learner import Assignment, Learner, Outcome
from polytempo.sim.evaluation import Evaluator, Stop
from polytempo.sim.flight import Flight, Kind
from polytempo.sim.history import History, update_row
from polytempo.sim.lookahead import Lookahead
from polytempo.sim.traffic import Traffic
from polytempo.strategies.contract import check_order, check_upload
from polytempo.strategies.strategy import Strategy
from polytempo.world.devices import Devices
from polytempo.world.federation import Federation


class Simulator:
    """Drives one strategy over one federation. ``run`` goes on from wherever the state is, so a simulator that was
    given a saved state ends bit-identical to one that was never stopped."""

    def __init__(
        self,
        strategy: Strategy,
        federation: Federation,
        devices: Devices,
        learner: Learner,
        stop: Stop,
        eval_every: int,
        seed: int,
        workers: int,
        history: History,
    ) -> None:
        self.strategy, self.federation, self.devices, self.learner = strategy, federation, devices, learner
        self.eval_every, self.seed = eval_every, seed
        self.history = history
        self.pool = Lookahead(workers)
        self._x = torch.from_numpy(federation.dataset.x)
        self.evaluator = Evaluator(strategy, federation, devices, learner, stop, history, self.pool, self._x)
        self._model_bytes = 4 * learner.schema.size if strategy.travels else 0
        self.traffic = Traffic(history, self._model_bytes)

        n = len(federation)
        self.now = 0.0
        self.updates = 0
        self.client_steps = 0
        self.refused_in_a_row = 0
        self._events: list[tuple[float, int, int, int, Any]] = []  # time, kind, number, client, detail
        self._number = 0
        self._status = np.zeros(n, np.uint8)
        self._orders = np.zeros(n, np.int64)  # Train orders so far, per client
        self._updates_of = np.zeros(n, np.int64)
        self._generation = np.zeros(n, np.int64)
        self._ready_since = np.zeros(n)
        self._idle = np.zeros(n)  # seconds, ready and without work, until the last order
        self._flights: dict[int, Flight] = {}
        self._finished = False

    @property
    def stop(self) -> Stop:
        return self.evaluator.stop

    @property
    def bytes_up(self) -> int:
        return self.traffic.bytes_up

    @property
    def bytes_down(self) -> int:
        return self.traffic.bytes_down

    # The loop.

    def run(self, after_event: Callable[[], None] = lambda: None) -> None:
        """Simulate to the end. ``after_event`` is called between events (progress, checkpoints)."""
        try:
            if self.evaluator.evaluated_at < 0:
                self._begin()
            else:
                for client, flight in self._flights.items():
                    if not flight.lost:
                        self._submit(client, flight)
            while not self._finished and self._events and self._events[0][0] <= self.stop.time:
                self._step()
                after_event()
            if not self._finished:
                if not self._events:
                    raise StrategyError(
                        f"nothing happens any more after {self.updates} updates at {self.now:,.1f} s: no client is in "
                        "training and no timer is set"
                    )
                self.now = self.stop.time
            if self.evaluator.evaluated_at != self.updates or not self._finished:
                self._evaluate()
            self.traffic.close()
            self._finished = True
        finally:
            self.pool.close()

    def _begin(self) -> None:
        n = len(self.federation)
        for drift_time, clients in self.federation.drift_times():
            for client in clients:
                if drift_time > 0:
                    self._push(drift_time, Kind.DRIFT, client)
                else:
                    self._drift(client)
        self._evaluate()
        late = [client for client in range(n) if self.devices.joins_at(client) > 0]
        for client in late:
            self._push(self.devices.joins_at(client), Kind.JOIN, client)
        for client in range(n):
            self._plan_pull(client)
        present = np.setdiff1d(np.arange(n), late)
        for client in present.tolist():
            self._tell_joined(client)
        # In random order, so that "at most k at once" begins with a random k.
        for client in stream(self.seed, "first ready").permutation(present).tolist():
            self._let_go(client)

    def _step(self) -> None:
        self.now, kind, _, client, detail = heapq.heappop(self._events)
        if kind == Kind.ARRIVAL:
            self._arrive(client, detail)
        elif kind == Kind.DELIVERY:
            self._deliver(client, *detail)
        elif kind == Kind.WAKE:
            self._ready(client)
        elif kind == Kind.TIMER:
            self._carry_out(self.strategy.fired(detail, self.now))
        elif kind == Kind.JOIN:
            self._tell_joined(client)
            self.history.mark(self.now, "joined", client)
            self._let_go(client)
        elif kind == Kind.LOSS:
            self._lose(client, detail)
        elif kind == Kind.PULL:
            self._pull(client)
        else:
            self._drift(client)
        if self.updates >= self.evaluator.evaluated_at + self.eval_every or self.updates == self.stop.updates:
            self._evaluate()

    def _ticket(self) -> int:
        self._number += 1
        return self._number

    def _push(self, at: float, kind: Kind, client: int, detail: Any = None) -> None:
        heapq.heappush(self._events, (at, int(kind), self._ticket(), client, detail))

    # Clients come, get ready and go.

    def _tell_joined(self, client: int) -> None:
        self._status[client] = Status.PAUSED
        self._carry_out(self.strategy.joined(client, self.now))

    def _let_go(self, client: int) -> None:
        """A client has nothing to do: it thinks, waits until it is available, and then says that it is ready."""
        self._status[client] = Status.PAUSED
        wake = self.now + self.devices.think_seconds(client, int(self._orders[client]))
        wake = self.devices.available_from(client, wake)
        if wake > self.now:
            self._push(wake, Kind.WAKE, client)
        else:
            self._ready(client)

    def _ready(self, client: int) -> None:
        self._status[client] = Status.READY
        self._ready_since[client] = self.now
        self._carry_out(self.strategy.ready(client, self.now))

    def _lose(self, client: int, away: float) -> None:
        """The client is gone, with what it was training."""
        self._leave(client, away, self._flights.pop(client).order.due)

    def _leave(self, client: int, away: float, awaited: Due | None = None) -> None:
        self._status[client] = Status.AWAY
        self.history.mark(self.now, "left", client, awaited)
        self._carry_out(self.strategy.left(client, self.now))
        self._push(self.now + away, Kind.JOIN, client)

    def _pull(self, client: int) -> None:
        self._plan_pull(client)
        if self._status[client] != Status.AWAY:
            self.history.mark(self.now, "pull", client)
            self._carry_out(self.strategy.pulled(client, self.now))

    def _plan_pull(self, client: int) -> None:
        period = self.devices.pull_every(client)
        if period is not None:
            self._push(self.now + period, Kind.PULL, client)

    def _drift(self, client: int) -> None:
        self._generation[client] += 1
        self.history.mark(self.now, "drift", client)

    # Orders.

    def _carry_out(self, orders: Orders) -> None:
        for order in orders or ():
            self._obey(order)

    def _obey(self, order: Order) -> None:
        check_order(order, None if isinstance(order, SetTimer) else self._status_of(order.client))
        if isinstance(order, SetTimer):
            self._push(max(order.at, self.now), Kind.TIMER, -1, order.key)
        elif isinstance(order, Train):
            self._dispatch(order)
        elif isinstance(order, Send):
            self.traffic.send(self.now, order.client in self._flights)
            self._tell(order, self._model_bytes)
        else:
            self._tell(order, 0)

    def _status_of(self, client: int) -> Status | None:
        return Status(self._status[client]) if 0 <= client < len(self.federation) else None

    def _dispatch(self, order: Train) -> None:
        client = order.client
        count = int(self._orders[client])
        generation = int(self._generation[client])
        self._orders[client] += 1
        download = order.models_down * self._model_bytes
        # An order that reaches a client while it is off waits until it is on.
        here = self.now + self._down_seconds(client, download)
        begins = self.devices.available_from(client, here)
        self.traffic.order(self.now, order.models_down)
        density = 1.0 if order.mask is None else float(order.mask.float().mean())
        upload = self.learner.schema.trained(order.mask, order.trainable)
        check_upload(order, upload)
        flight = Flight(
            self._ticket(),
            order,
            count,
            generation,
            self.now,
            begins,
            self.devices.step_seconds(client, count) * density,
            order.work.steps_for(self.federation.samples(client, generation)),
            self._model_bytes if upload is None else min(4 * int(upload.sum()), self._model_bytes),
        )
        self._status[client] = Status.TRAINING
        self._idle[client] += self.now - self._ready_since[client]
        self._flights[client] = flight
        arrives = self._arrival(flight)
        lost = self.devices.dropout(client, count)
        if lost is not None:
            share, away = lost
            flight.lost = True
            self._push(self.now + share * (arrives - self.now), Kind.LOSS, client, away)
            return
        self._push(arrives, Kind.ARRIVAL, client, flight.ticket)
        self._submit(client, flight)

    def _down_seconds(self, client: int, nbytes: int) -> float:
        return self.devices.down_seconds(client, nbytes) if self.strategy.travels else 0.0

    def _up_seconds(self, flight: Flight) -> float:
        client = flight.order.client
        return self.devices.up_seconds(client, flight.upload_bytes) if self.strategy.travels else 0.0

    def _arrival(self, flight: Flight) -> float:
        client = flight.order.client
        ends = self.devices.finish(client, flight.begins, flight.steps, flight.step_seconds)
        return ends + self._up_seconds(flight)

    def _tell(self, order: Send | Report, nbytes: int) -> None:
        """Messages reach a client in whatever it was doing when they were sent; if it has gone on, they are void."""
        flight = self._flights.get(order.client)
        if flight is not None:
            at = self.now + self._down_seconds(order.client, nbytes)
            self._push(at, Kind.DELIVERY, order.client, (flight.ticket, order, self.now))

    def _deliver(self, client: int, ticket: int, order: Send | Report, ordered: float) -> None:
        flight = self._flights.get(client)
        if flight is None or flight.ticket != ticket or flight.lost:
            return
        done = self.devices.steps_done(client, flight.begins, self.now, flight.step_seconds)
        if done >= flight.steps:
            return  # already uploading
        self.pool.cancel(ticket)
        if isinstance(order, Send):
            self.history.mark(self.now, "refresh", client, ordered=ordered)
            flight.sends.append((done, order))
        else:
            self.history.mark(self.now, "report", client)
            flight.steps, flight.ticket = done, self._ticket()
            arrives = self.now + self._up_seconds(flight)
            self._push(arrives, Kind.ARRIVAL, client, flight.ticket)
        self._submit(client, flight)

    def _submit(self, client: int, flight: Flight) -> None:
        data = self.federation.client(client, flight.generation)
        assignment = Assignment(
            flight.order,
            self._x,
            torch.from_numpy(data.y),
            data.train,
            flight.steps,
            flight.count,
            self.seed,
            tuple(flight.sends),
        )
        self.pool.submit(flight.ticket, self._arrival(flight), lambda: self.learner.carry_out(assignment))

    # Updates.

    def _arrive(self, client: int, ticket: int) -> None:
        flight = self._flights.get(client)
        if flight is None or flight.ticket != ticket:
            return  # it was told to report, and did
        del self._flights[client]
        outcome: Outcome = self.pool.result(ticket)
        self.traffic.upload(self.now, flight.upload_bytes)
        if not outcome.finite:
            self._refuse(client, flight.order.due)
            return
        self.client_steps += flight.steps
        self.refused_in_a_row = 0
        update = Update(
            client,
            outcome.version,
            outcome.start,
            outcome.weights,
            self.federation.samples(client, flight.generation),
            flight.steps,
            outcome.chosen,
            outcome.answers,
        )
        self._record(update, flight)
        self._carry_out(self.strategy.updated(update, self.now))
        for _ in range(self.federation.drifts_after_update(client, int(self._updates_of[client]))):
            self._drift(client)
        self._let_go(client)

    def _refuse(self, client: int, awaited: Due | None) -> None:
        """NaN or Inf never touches the server's state: the client is out, and in again."""
        self.history.mark(self.now, "refused", client)
        self.refused_in_a_row += 1
        if self.refused_in_a_row > 3 * len(self.federation):
            raise UserError(
                f"Training diverges: the last {self.refused_in_a_row} updates held NaN or Inf and were refused. "
                "Lower the learning rate (--lr)."
            )
        self._leave(client, 0.0, awaited)

    def _record(self, update: Update, flight: Flight) -> None:
        self.updates += 1
        self._updates_of[update.client] += 1
        self.history.updates.append(update_row(self.now, update, flight, self.strategy.tau(update)))
        self.evaluator.keep(update, flight.generation)

    def _evaluate(self) -> None:
        traffic = {"bytes_up": self.bytes_up, "bytes_down": self.bytes_down}
        self._finished = self.evaluator.evaluate(self.now, self.updates, self._generation, self._idle_shares(), traffic)

    def _idle_shares(self) -> np.ndarray:
        """For each client the share of the time since it joined in which it was ready and had nothing to do."""
        waiting = np.where(self._status == Status.READY, self.now - self._ready_since, 0.0)
        there = np.maximum(self.now - self.devices.joins, np.finfo(float).tiny)
        return (self._idle + waiting) / there

    def drifts_to_come(self) -> list[float]:
        """Times of the drifts that lie ahead."""
        return [at for at, kind, *_ in self._events if kind == Kind.DRIFT]

    # State.

    _state = (
        *("now", "updates", "client_steps", "refused_in_a_row", "_events", "_number"),
        *("_status", "_orders", "_updates_of", "_generation", "_ready_since", "_idle", "_flights", "_finished"),
    )

    def save_state(self) -> dict[str, Any]:
        """Everything that ``run`` goes on from, the strategy's state included."""
        return {name: getattr(self, name) for name in self._state} | {
            "evaluator": self.evaluator.save_state(),
            "traffic": self.traffic.save_state(),
            "strategy": self.strategy.save_state(),
        }

    def load_state(self, saved: dict[str, Any]) -> None:
        for name in self._state:
            setattr(self, name, saved[name])
        self.evaluator.load_state(saved["evaluator"])
        self.traffic.load_state(saved["traffic"])
        self.strategy.load_state(saved["strategy"])
