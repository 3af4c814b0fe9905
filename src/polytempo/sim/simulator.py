"""The simulator: a virtual clock, a heap of events, and a strategy that never learns that time is not real.

Virtual time comes from the device model only, never from how long this machine took. Training runs ahead on an
executor. Since one client's result never depends on who else is training, a run is bit-identical wherever and with
however many workers it is computed."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.flight import Flight
from polytempo.core.model.vectors import trained_entries
from polytempo.core.orders import Due, Order, Report, Send, SetTimer, Train
from polytempo.core.status import Status
from polytempo.learn.learner import Assignment, CarriedOut
from polytempo.learn.rules import rule_of
from polytempo.sim.agenda import Agenda, Kind
from polytempo.sim.asks import Asks
from polytempo.sim.clients import Clients
from polytempo.sim.endings import diverging, stalled
from polytempo.sim.executors.executor import Executor
from polytempo.sim.network import Network
from polytempo.sim.personal import PersonalClients
from polytempo.sim.records.evaluation import Evaluator, Stop
from polytempo.sim.records.exchanges import Exchanges
from polytempo.sim.records.history import History, update_row
from polytempo.sim.records.traffic import Traffic
from polytempo.sim.records.used import UsedRows
from polytempo.sim.training import Training
from polytempo.sim.world import World
from polytempo.strategies import Strategy
from polytempo.strategies.base.contract import check_order, check_upload
from polytempo.strategies.base.explaining import explained
from polytempo_client.streams import stream


class Simulator:
    """Drives one strategy over one federation. ``run`` goes on from wherever the state is, so a simulator that was
    given a saved state ends bit-identical to one that was never stopped."""

    def __init__(
        self, strategy: Strategy, world: World, stop: Stop, eval_every: int, executor: Executor, history: History
    ) -> None:
        self.strategy, self.eval_every, self.history = strategy, eval_every, history
        self.federation, self.devices, self.learner = world.federation, world.devices, world.learner
        self.uploads, self.seed, self._x = world.uploads, world.seed, world.x
        self.executor = executor
        self.personal = PersonalClients(world)
        self.evaluator = Evaluator(strategy, world, stop, history, executor, self.personal)
        self.network = Network(world.devices, strategy.travels, world.learner.schema.size, world.uploads.compression)
        self.traffic = Traffic(history, self.network.model_bytes)
        self.asks = None if world.asking is None else Asks(world.asking, world)
        exchanges = world.asking is not None or world.federation.mixtures is not None
        self.exchanges = Exchanges(strategy, world, history, executor, self.personal) if exchanges else None

        self.now = 0.0
        self.updates = 0
        self.client_steps = 0
        self.refused = self.refused_in_a_row = 0
        self.agenda = Agenda()
        self.clients = Clients(len(world.federation))
        self._trainings: dict[int, Training] = {}
        self._finished = False
        self.used: UsedRows | None = None  # at the end
        self.validation: float | None = None  # at the end
        self.used_models: dict[int, Tensor] | None = None  # at the end

    @property
    def stop(self) -> Stop:
        return self.evaluator.stop

    # The loop.

    def run(self, after_event: Callable[[], None] = lambda: None) -> None:
        """Simulate to the end. ``after_event`` is called between events (progress, checkpoints)."""
        try:
            if self.evaluator.evaluated_at < 0:
                self._begin()
            else:
                for training in self._trainings.values():
                    if not training.lost and not training.is_held:
                        self._submit(training)
            while not self._finished and self.agenda and self.agenda.next_time() <= self.stop.time:
                self._step()
                after_event()
            if not self._finished:
                if not self.agenda:
                    raise stalled(self.updates, self.now)
                self.now = self.stop.time
            if self.evaluator.evaluated_at != self.updates or not self._finished:
                self._evaluate()
            self.used, self.validation, self.used_models = self.evaluator.at_the_end(self.clients.generation)
            self.traffic.close()
            self._finished = True
        finally:
            self.executor.close()

    def _begin(self) -> None:
        n = len(self.federation)
        for drift_time, clients in self.federation.drift_times():
            for client in clients:
                if drift_time > 0:
                    self.agenda.put(drift_time, Kind.DRIFT, client)
                else:
                    self._drift(client)
        self._evaluate()
        late = [client for client in range(n) if self.devices.joins_at(client) > 0]
        for client in late:
            self.agenda.put(self.devices.joins_at(client), Kind.JOIN, client)
        for client in range(n):
            self._plan_pull(client)
        present = np.setdiff1d(np.arange(n), late)
        for client in present.tolist():
            self._tell_joined(client)
        # In random order, so that "at most k at once" begins with a random k.
        for client in stream(self.seed, "first ready").permutation(present).tolist():
            self._let_go(client)

    def _step(self) -> None:
        self.now, kind, _, client, detail = self.agenda.pop()
        if kind == Kind.ARRIVAL:
            self._arrive(client, detail)
        elif kind == Kind.DELIVERY:
            self._deliver(client, *detail)
        elif kind == Kind.WAKE:
            self._ready(client)
        elif kind == Kind.TIMER:
            self._inform("fired", detail)
        elif kind == Kind.JOIN:
            self._tell_joined(client)
            self.history.mark(self.now, "joined", client)
            self._let_go(client)
        elif kind == Kind.LOSS:
            self._lose(client, detail)
        elif kind == Kind.PULL:
            self._pull(client)
        elif kind == Kind.ASK:
            self._look(client, detail)
        else:
            self._drift(client)
        if self.updates >= self.evaluator.evaluated_at + self.eval_every or self.updates == self.stop.updates:
            self._evaluate()

    # Clients come, get ready and go.

    def _tell_joined(self, client: int) -> None:
        self.clients.status[client] = Status.PAUSED
        self._inform("joined", client)

    def _let_go(self, client: int) -> None:
        """A client has nothing to do: it thinks, waits until it is available, and then says that it is ready."""
        self.clients.status[client] = Status.PAUSED
        wake = self.now + self.devices.think_seconds(client, int(self.clients.orders[client]))
        wake = self.devices.available_from(client, wake)
        if wake > self.now:
            self.agenda.put(wake, Kind.WAKE, client)
        else:
            self._ready(client)

    def _ready(self, client: int) -> None:
        self.clients.status[client] = Status.READY
        self.clients.ready_since[client] = self.now
        self._inform("ready", client)

    def _lose(self, client: int, away: float) -> None:
        """The client is gone, with what it was training."""
        self._leave(client, away, self._trainings.pop(client).flight.order.due)

    def _leave(self, client: int, away: float, awaited: Due | None = None) -> None:
        self.clients.status[client] = Status.AWAY
        self.history.mark(self.now, "left", client, awaited)
        self._inform("left", client)
        self.agenda.put(self.now + away, Kind.JOIN, client)

    def _pull(self, client: int) -> None:
        self._plan_pull(client)
        if self.clients.status[client] != Status.AWAY:
            self.history.mark(self.now, "pull", client)
            self._inform("pulled", client)

    def _plan_pull(self, client: int) -> None:
        period = self.devices.pull_every(client)
        if period is not None:
            self.agenda.put(self.now + period, Kind.PULL, client)

    def _drift(self, client: int) -> None:
        self.clients.generation[client] += 1
        self.history.mark(self.now, "drift", client)

    # Orders.

    def _inform(self, event: str, about: Update | int | str) -> None:
        """Tell the strategy of an event, and do what it orders."""
        client = about.client if isinstance(about, Update) else about
        subject = f"timer {client!r}" if isinstance(client, str) else f"client {client}"
        with explained(self.strategy, f"{event} ({subject}, {self.now:,.1f} s of virtual time)"):
            orders: list[Order] = list(getattr(self.strategy, event)(about, self.now) or ())
        for order in orders:
            self._obey(order)

    def _obey(self, order: Order) -> None:
        check_order(order, None if isinstance(order, SetTimer) else self.clients.status_of(order.client))
        if isinstance(order, SetTimer):
            self.agenda.put(max(order.at, self.now), Kind.TIMER, -1, order.key)
        elif isinstance(order, Train):
            self._dispatch(order)
        elif isinstance(order, Send):
            self.traffic.count_send(self.now, order.client in self._trainings)
            self._tell(order, self.network.model_bytes)
        else:
            self._tell(order, 0)

    def _dispatch(self, order: Train) -> None:
        client = order.client
        generation = int(self.clients.generation[client])
        flight = Flight(self.agenda.draw_ticket(), order, int(self.clients.orders[client]), self.now)
        self.clients.orders[client] += 1
        self.traffic.count_order(self.now, order.models_down)
        here = self.now + self.network.down_seconds(client, order.models_down * self.network.model_bytes)
        density = 1.0 if order.mask is None else float(order.mask.float().mean())
        upload = trained_entries(self.learner.schema, order.mask, order.trainable)
        check_upload(order, upload)
        training = Training(
            flight,
            generation,
            self.devices.step_seconds(client, flight.count) * density * rule_of(order.personal).models_trained,
            order.work.steps_for(self.federation.samples(client, generation)),
            self.network.update_bytes(upload),
        )
        self.clients.status[client] = Status.TRAINING
        self.clients.idle[client] += self.now - self.clients.ready_since[client]
        self._trainings[client] = training
        if self.asks is None:
            self._begin_training(training, here)
        else:
            wait = self.asks.wait(training, int(self.clients.trained_on[client]))
            self.agenda.put(here + wait, Kind.ASK, client, training.ticket)

    def _look(self, client: int, ticket: int) -> None:
        """A client that holds an order asks now, or looks again later."""
        training = self._awaited(client, ticket)
        if training is None or self.asks is None:
            return  # it was told to report
        training.looks += 1
        trained_on = int(self.clients.trained_on[client])
        why = self.asks.reason(training, trained_on, int(self.clients.generation[client]))
        if why is None:
            self.agenda.put(self.now + self.asks.wait(training, trained_on), Kind.ASK, client, ticket)
            return
        self.history.mark(self.now, "ask", client, why=why)
        self._begin_training(training, self.now)

    def _begin_training(self, training: Training, at: float) -> None:
        """The client trains, on the data that it has now."""
        client, flight = training.client, training.flight
        training.generation = int(self.clients.generation[client])
        rows, ahead = self.personal.rows_and_forward_steps(flight.order, training.generation)
        training.steps = flight.order.work.steps_for(rows)
        if rule_of(flight.order.personal).trains_ahead:
            ahead += self.personal.steps_ahead(self._assignment(training))
        # An order that reaches a client while it is off waits until it is on.
        at = self.devices.available_from(client, at)
        training.begins = self.devices.finish(client, at, ahead, training.step_seconds)
        arrives = self.network.arrival(training)
        lost = self.devices.dropout(client, flight.count)
        if lost is not None:
            share, away = lost
            training.lost = True
            self.agenda.put(self.now + share * (arrives - self.now), Kind.LOSS, client, away)
            return
        self.agenda.put(arrives, Kind.ARRIVAL, client, training.ticket)
        self._submit(training)

    def _tell(self, order: Send | Report, nbytes: int) -> None:
        """Messages reach a client in whatever it was doing when they were sent; if it has gone on, they are void."""
        training = self._trainings.get(order.client)
        if training is not None:
            at = self.now + self.network.down_seconds(order.client, nbytes)
            self.agenda.put(at, Kind.DELIVERY, order.client, (training.ticket, order, self.now))

    def _deliver(self, client: int, ticket: int, order: Send | Report, ordered: float) -> None:
        training = self._awaited(client, ticket)
        if training is None or training.lost:
            return
        done = self.devices.steps_done(client, training.begins, self.now, training.step_seconds)
        if done >= training.steps:
            return  # already uploading
        if not training.is_held:
            self.executor.cancel(ticket)
        if isinstance(order, Send):
            self.history.mark(self.now, "refresh", client, ordered=ordered)
            training.refresh(self.agenda.draw_ticket(), order, done)
        else:
            self.history.mark(self.now, "report", client)
            if training.is_held:
                training.begins, training.generation = self.now, int(self.clients.generation[client])
            training.steps, training.flight.reported = done, self.agenda.draw_ticket()
            self.agenda.put(self.now + self.network.up_seconds(training), Kind.ARRIVAL, client, training.ticket)
        if not training.is_held:
            self._submit(training)

    def _submit(self, training: Training) -> None:
        self.executor.submit(training.ticket, self.network.arrival(training), self._assignment(training))

    def _assignment(self, training: Training) -> Assignment:
        """What the client is to do, as it reaches the client."""
        client, generation = training.client, training.generation
        assignment = training.assignment(self._x, self.federation.client(client, generation), self.seed)
        return self.uploads.compression.received(self.personal.with_memory(assignment, generation))

    def _awaited(self, client: int, ticket: int) -> Training | None:
        """The client's training, if it is still the one with this ticket."""
        training = self._trainings.get(client)
        return training if training is not None and training.ticket == ticket else None

    # Updates.

    def _arrive(self, client: int, ticket: int) -> None:
        training = self._awaited(client, ticket)
        if training is None:
            return  # it was told to report, and did
        del self._trainings[client]
        order = training.flight.order
        carried_out: CarriedOut = self.executor.fetch(ticket)
        own = carried_out.update
        trained = trained_entries(self.learner.schema, order.mask, order.trainable)
        update = self.uploads.deliver(own, training.flight, trained)
        self.traffic.count_upload(self.now, training.upload_bytes)
        if update is None:
            self._refuse(client, order.due)
            return
        self.client_steps += training.steps
        self.refused_in_a_row = 0
        staleness = self.strategy.tau(update)
        self.personal.keep(client, carried_out.memory)
        own = replace(own, weights=carried_out.own)
        self._record(own, training, staleness)
        self._inform("updated", update)
        if self.exchanges is not None:
            self.exchanges.keep(self.now, self.updates, own, staleness, training.generation)
        for _ in range(self.federation.drifts_after_update(client, int(self.clients.updates[client]))):
            self._drift(client)
        self._let_go(client)

    def _refuse(self, client: int, awaited: Due | None) -> None:
        """NaN or Inf never touches the server's state: the client is out, and in again."""
        self.history.mark(self.now, "refused", client)
        self.refused += 1
        self.refused_in_a_row += 1
        if self.refused_in_a_row > 3 * len(self.federation):
            raise diverging(self.refused_in_a_row)
        self._leave(client, 0.0, awaited)

    def _record(self, own: Update, training: Training, staleness: int) -> None:
        self.updates += 1
        self.clients.updates[own.client] += 1
        if training.steps:
            self.clients.trained_on[own.client] = training.generation
        self.history.updates.append(update_row(self.now, own, training, staleness))
        self.evaluator.keep(own, training.generation)

    def _evaluate(self) -> None:
        if self.exchanges is not None:
            self.exchanges.score()
        traffic = {"bytes_up": self.traffic.bytes_up, "bytes_down": self.traffic.bytes_down}
        idle = self.clients.idle_shares(self.now, self.devices.joins)
        self._finished = self.evaluator.evaluate(self.now, self.updates, self.clients.generation, idle, traffic)

    # State.

    _state = (
        *("now", "updates", "client_steps", "refused", "refused_in_a_row"),
        *("agenda", "clients", "_trainings", "_finished"),
    )

    def save_state(self) -> dict[str, Any]:
        """Everything that ``run`` goes on from, the strategy's state included."""
        return {name: getattr(self, name) for name in self._state} | {
            "evaluator": self.evaluator.save_state(),
            "traffic": self.traffic.save_state(),
            "residuals": self.uploads.compression.residuals,
            "exchanges": None if self.exchanges is None else self.exchanges.save_state(),
            "personal": self.personal.save_state(),
            "strategy": self.strategy.save_state(),
        }

    def load_state(self, saved: dict[str, Any]) -> None:
        for name in self._state:
            setattr(self, name, saved[name])
        self.evaluator.load_state(saved["evaluator"])
        self.traffic.load_state(saved["traffic"])
        self.uploads.compression.residuals = saved["residuals"]
        if self.exchanges is not None:
            self.exchanges.load_state(saved["exchanges"])
        self.personal.load_state(saved["personal"])
        self.strategy.load_state(saved["strategy"])
