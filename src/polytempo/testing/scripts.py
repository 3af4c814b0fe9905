"""What happened in a simulation, as a script that a service can be led through."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from polytempo.core.events import Update
from polytempo.core.orders import Order, Send, Train
from polytempo.core.state import digest
from polytempo.core.threads import one_thread
from polytempo.learn.learner import Assignment
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.simulator import Simulator
from polytempo.sim.training import Training
from polytempo.strategies import Strategy
from polytempo.strategies.base.contract import check_packable
from polytempo.strategies.base.participation import parse_quota
from polytempo.strategies.settings import StrategySettings
from polytempo.testing.building import simulator, tiny_proxies
from polytempo.testing.hosting import BARE, Hosted
from polytempo.world.proxies import write_proxies

CLIENTS = 5
WORLDS = {
    "slow": ("slow:0.4x5", "all"),
    "restless": (
        'speed = "uniform:3"\npull_every = 6.1\n'
        "[network]\nup = 50.0\ndown = 90.0\nlatency = 0.25\n"
        "[dropout]\nprobability = 0.3\naway = 7.7\n"
        "[[late]]\nclients = 0.4\nby = 20.0\n",
        "all",
    ),
    "quota": ('speed = "normal:0.3"\nthink = 2.0\n[dropout]\nprobability = 0.2\naway = 3.3\n', "k:2"),
}


def linear(_: object) -> nn.Module:
    """The model of ``simulator``, where no layers are private."""
    return nn.Sequential(nn.Linear(4, 3))


@dataclass(frozen=True)
class Happened:
    """An event of a simulation, as a client sees it."""

    kind: str
    client: int
    at: float
    steps: int = 0
    generation: int = 0
    sends: tuple[tuple[int, Send], ...] = ()


@dataclass(frozen=True)
class Call:
    """A strategy's event with its orders, and what both looked like at that moment."""

    event: str
    subject: Any
    """The client, the update or the timer's key."""
    now: float
    orders: list[Order]
    subject_digest: str
    orders_digest: str

    def __str__(self) -> str:
        client = getattr(self.subject, "client", self.subject)
        return f"{self.event}({client!r}) at {self.now:g} s"


class Recorder:
    """Stands before a simulator's strategy and writes down its events and orders."""

    _events = ("joined", "ready", "updated", "pulled", "fired", "left")

    def __init__(self, sim: Simulator) -> None:
        self._strategy, self._record = sim.strategy, sim._record
        self._training: Training | None = None
        self.script: list[Happened] = []
        self.calls: list[Call] = []
        sim.strategy = self  # type: ignore[assignment]
        sim._record = self.record  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        event = getattr(self._strategy, name)
        if name not in self._events:
            return event

        def tell(subject: Any, now: float) -> list[Order]:
            self.script.append(self._happened(name, subject, now))
            before = digest(subject)
            orders = list(event(subject, now) or ())
            self.calls.append(Call(name, subject, now, orders, before, digest(orders)))
            return orders

        return tell

    def record(self, own: Update, training: Training, staleness: int) -> None:
        self._training = training
        self._record(own, training, staleness)

    def _happened(self, event: str, subject: Any, now: float) -> Happened:
        if not isinstance(subject, Update):
            return Happened(event, -1 if event == "fired" else subject, now)
        training = self._training
        assert training is not None
        sends = tuple(zip(training.refreshed_at, (send for _, send in training.flight.sends), strict=True))
        return Happened("updated", subject.client, now, subject.steps, training.generation, sends)


@dataclass(frozen=True)
class Simulation:
    """A finished simulation, what happened in it, and the settings of the same service."""

    sim: Simulator
    strategy: Strategy
    script: list[Happened]
    calls: list[Call]
    settings: dict[str, Any]


def simulated(
    name: str, world: str, directory: Path, parameters: Mapping[str, Any] | None = None, personal: bool = False
) -> Simulation:
    """Simulate a strategy in one of the worlds, with the personal rule around it if that is wanted. What its service
    needs is written into the directory."""
    devices, quota = WORLDS[world]
    if "\n" in devices:
        (directory / "devices.toml").write_text(devices)
        devices = str(directory / "devices.toml")
    strategy = as_served(name, parameters or {}, personal)
    engine = "auto" if strategy.needs_proxies else "eager"  # a server trains on its proxy sets as it likes
    sim = simulator(strategy, CLIENTS, devices, Stop(updates=20), participation=parse_quota(quota), engine=engine)
    check_packable(strategy)
    np.save(directory / "init.npy", sim.learner.layers.whole(strategy.setting.initial, None).numpy())
    recorder = Recorder(sim)
    with one_thread():  # as a run and a service do
        sim.run()
    settings = {
        "strategy": name,
        "parameters": dict(parameters or {}),
        "personal": personal,
        "model": f"polytempo.testing.{'building:two_layers' if strategy.personal_layers else 'scripts:linear'}",
        "init": directory / "init.npy",
        "participation": quota,
        "steps": 4,
        "batch_size": 4,
        "lr": 0.1,
        **BARE,
    }
    if strategy.needs_proxies:
        write_proxies(directory / "proxies.npz", tiny_proxies())
        data = "polytempo.testing.building:tiny_dataset"
        settings |= {"proxies": directory / "proxies.npz", "warm_up": 0, "data": data}
    return Simulation(sim, strategy, recorder.script, recorder.calls, settings)


def as_served(name: str, parameters: Mapping[str, Any], personal: bool = False) -> Strategy:
    """A strategy with what a service with these settings puts around it."""
    given = {"strategy": name, "parameters": dict(parameters), "personal": personal}
    return StrategySettings.model_validate(given).make()


class Replica:
    """The clients of a simulation once more, with nothing in memory: they carry out what a service orders."""

    def __init__(self, sim: Simulator) -> None:
        self._sim = sim
        self._personal = sim.personal.anew()

    def carried_out(self, happened: Happened, order: Train, count: int, sends: list[Send]) -> Update:
        """What a client makes of the order that the service gave it. It remembers what it trained."""
        sim = self._sim
        data = sim.federation.client(happened.client, happened.generation)
        assignment = Assignment(
            order,
            sim._x,
            torch.from_numpy(data.y),
            data.train,
            happened.steps,
            count,
            sim.seed,
            tuple(zip([step for step, _ in happened.sends], sends, strict=True)),
        )
        done = sim.learner.carry_out(self._personal.with_memory(assignment, happened.generation))
        self._personal.keep(happened.client, done.memory)
        return done.update


def ready_follows(script: list[Happened], index: int) -> bool:
    """Does the client say ready in the same breath?"""
    here = script[index]
    after = script[index + 1 : index + 2]
    return bool(after) and (after[0].kind, after[0].client, after[0].at) == ("ready", here.client, here.at)


def heeded(offered: list[tuple[int, Send]], happened: Happened) -> list[tuple[int, Send]]:
    """Of the refreshes that the service sent, those that reached the simulated client in time."""
    rest = iter(offered)
    return [next(one for one in rest if same(one[1], sent)) for _, sent in happened.sends]


def same(a: Send, b: Send) -> bool:
    return (a.version, a.rebase) == (b.version, b.rebase) and torch.equal(a.weights, b.weights)


def play(script: list[Happened], sim: Simulator, hosted: Hosted) -> None:
    """Let the same things happen to a service."""
    told_ready, replica = False, Replica(sim)
    for index, happened in enumerate(script):
        client = happened.client
        hosted.clock.now = happened.at
        if happened.kind == "fired":
            hosted.at(happened.at)
        elif happened.kind == "joined":
            hosted.hello(client)
        elif happened.kind == "pulled":
            hosted.pull(client)
        elif happened.kind == "left":
            hosted.leave(client)
        elif happened.kind == "ready" and not told_ready:
            hosted.ready(client)
        elif happened.kind == "updated":
            flight = hosted.host.service.flights[client]
            sends = heeded(flight.sends, happened)
            update = replica.carried_out(happened, flight.order, flight.count, [send for _, send in sends])
            reply = hosted.push(
                client,
                weights=update.weights,
                base=sends[-1][0] if sends else flight.number,
                samples=update.samples,
                steps=happened.steps,
                chosen=update.chosen,
                answers=update.answers,
                jury=update.jury,
                ready=ready_follows(script, index),
            )
            assert reply.WhichOneof("kind") in ("task", "accepted")
        told_ready = happened.kind == "updated" and ready_follows(script, index)


def told(hosted: Hosted) -> list[tuple[str, int, float]]:
    """What the service's strategy was told, from its journal."""
    events: list[tuple[str, int, float]] = []
    for event in hosted.events():
        events.append((event.kind, event.client, event.at))
        if event.push is not None and event.push.ready:
            events.append(("ready", event.client, event.at))
    return events
