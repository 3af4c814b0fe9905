"""What happened in a simulation, as a script that a service can be led through."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from polytempo.core.events import Update
from polytempo.core.orders import Candidates, Objective, Orders, Send, Train
from polytempo.learn.learner import Assignment, Outcome
from polytempo.sim.evaluation import Stop
from polytempo.sim.flight import Flight
from polytempo.sim.simulator import Simulator
from polytempo.strategies import Strategy, make_strategy
from polytempo.strategies.parts.participation import parse_quota
from polytempo.world.proxies import write_proxies
from support.building import simulator, tiny_proxies
from support.serving import Hosted

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


class Choosy(Strategy):
    """Orders with everything in them: candidates, an anchor, a linear term, a mask, layers, questions; and it keeps the
    answers."""

    def setup(self) -> None:
        self.kept: list[tuple[int, int | None, dict[str, Any]]] = []

    def order_for(self, client: int, now: float) -> Train:
        model = self.model.weights
        candidates = Candidates(
            (model, model * 0.5, model + 0.1), (self.model.version, -1, -2), "best" if client % 2 else "mixture"
        )
        objective = Objective(proximal=0.1, cosine=0.01, anchor=model * 0.9, linear=model * 0.1)
        mask = torch.arange(len(model)) % 5 != client
        layers = ("0.weight",) if client == 3 else ()
        questions = ("loss-statistics",)
        return self.train(
            client,
            self.model,
            steps=3,
            objective=objective,
            candidates=candidates,
            questions=questions,
            mask=mask,
            trainable=layers,
        )

    def updated(self, update: Update, now: float) -> Orders:
        self.kept.append((update.client, update.chosen, update.answers))
        self.model.step(update.delta, 0.3)


def linear(_: object) -> nn.Module:
    """The model of ``building.simulator``."""
    return nn.Sequential(nn.Linear(4, 3))


@dataclass(frozen=True)
class Happened:
    kind: str
    client: int
    at: float
    steps: int = 0
    generation: int = 0
    sends: tuple[tuple[int, Send], ...] = ()


class Told:
    """Stands before a simulator's strategy and writes down what it is told."""

    def __init__(self, sim: Simulator) -> None:
        self._strategy, self._record = sim.strategy, sim._record
        self._flight: Flight | None = None
        self.script: list[Happened] = []
        sim.strategy = self  # type: ignore[assignment]
        sim._record = self.record  # type: ignore[method-assign]

    def __getattr__(self, name: str) -> Any:
        event = getattr(self._strategy, name)
        if name not in ("joined", "ready", "pulled", "fired", "left"):
            return event

        def tell(subject: Any, now: float) -> Orders:
            self.script.append(Happened(name, -1 if name == "fired" else subject, now))
            return event(subject, now)

        return tell

    def record(self, update: Update, flight: Flight, staleness: int) -> None:
        self._flight = flight
        self._record(update, flight, staleness)

    def updated(self, update: Update, now: float) -> Orders:
        flight = self._flight
        assert flight is not None
        happened = Happened("updated", update.client, now, update.steps, flight.generation, tuple(flight.sends))
        self.script.append(happened)
        return self._strategy.updated(update, now)


@contextmanager
def simulated(name: str, world: str, directory: Path) -> Iterator[tuple[Simulator, list[Happened], dict[str, Any]]]:
    """A finished simulation, what happened in it, and the settings of the same service."""
    devices, quota = WORLDS[world]
    if "\n" in devices:
        (directory / "devices.toml").write_text(devices)
        devices = str(directory / "devices.toml")
    strategy = make_strategy(name, {})
    engine = "auto" if strategy.needs_proxies else "eager"  # a server trains on its proxy sets as it likes
    sim = simulator(strategy, CLIENTS, devices, Stop(updates=20), participation=parse_quota(quota), engine=engine)
    np.save(directory / "init.npy", strategy.setting.initial.numpy())
    told = Told(sim)
    sim.run()
    given = {
        "strategy": name,
        "model": "support.scripted:linear",
        "init": directory / "init.npy",
        "participation": quota,
        "steps": 4,
        "batch_size": 4,
        "lr": 0.1,
    }
    if strategy.needs_proxies:
        write_proxies(directory / "proxies.npz", tiny_proxies())
        given |= {"proxies": directory / "proxies.npz", "warm_up": 0, "data": "support.building:tiny_dataset"}
    yield sim, told.script, given


def carried_out(sim: Simulator, happened: Happened, order: Train, count: int, sends: list[Send]) -> Outcome:
    """What a client makes of the order that the service gave it."""
    data = sim.federation.client(happened.client, happened.generation)
    done = [step for step, _ in happened.sends]
    return sim.learner.carry_out(
        Assignment(
            order,
            sim._x,
            torch.from_numpy(data.y),
            data.train,
            happened.steps,
            count,
            sim.seed,
            tuple(zip(done, sends, strict=True)),
        )
    )


def ready_follows(script: list[Happened], place: int) -> bool:
    """Does the client say ready in the same breath?"""
    here = script[place]
    after = script[place + 1 : place + 2]
    return bool(after) and (after[0].kind, after[0].client, after[0].at) == ("ready", here.client, here.at)


def heeded(offered: list[tuple[int, Send]], happened: Happened) -> list[tuple[int, Send]]:
    """Of the refreshes that the service sent, those that reached the simulated client in time."""
    rest = iter(offered)
    return [next(one for one in rest if same(one[1], sent)) for _, sent in happened.sends]


def same(a: Send, b: Send) -> bool:
    return (a.version, a.rebase) == (b.version, b.rebase) and torch.equal(a.weights, b.weights)


def play(script: list[Happened], sim: Simulator, hosted: Hosted) -> None:
    """Let the same things happen to a service."""
    said_ready = False
    for place, happened in enumerate(script):
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
        elif happened.kind == "ready" and not said_ready:
            hosted.ready(client)
        elif happened.kind == "updated":
            flight = hosted.host.service.flights[client]
            sends = heeded(flight.sends, happened)
            outcome = carried_out(sim, happened, flight.order, flight.count, [send for _, send in sends])
            answer = hosted.push(
                client,
                weights=outcome.weights,
                base=sends[-1][0] if sends else flight.number,
                samples=sim.federation.samples(client, happened.generation),
                steps=happened.steps,
                chosen=outcome.chosen,
                answers=outcome.answers,
                ready=ready_follows(script, place),
            )
            assert answer.WhichOneof("kind") in ("task", "accepted")
        said_ready = happened.kind == "updated" and ready_follows(script, place)


def told(hosted: Hosted) -> list[tuple[str, int, float]]:
    """What the service's strategy was told, from its journal."""
    heard = []
    for event in hosted.events():
        heard.append((event.kind, event.client, event.at))
        if event.handed is not None and event.handed.ready:
            heard.append(("ready", event.client, event.at))
    return heard
