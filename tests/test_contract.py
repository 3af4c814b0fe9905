"""One sequence of events through the simulator and through the service ends in the same state, bit for bit, whatever
the strategy. Both sides train for themselves, from the orders that they were given."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from building import simulator, tiny_proxies
from polytempo.core.events import Update
from polytempo.core.orders import Candidates, Objective, Orders, Send, Train
from polytempo.core.state import digest
from polytempo.learn.learner import Assignment, Outcome
from polytempo.serve.client import Client
from polytempo.serve.join import order_of
from polytempo.serve.settings import make_settings
from polytempo.serve.wire_pb2 import Head, Ready
from polytempo.sim.evaluation import Stop
from polytempo.sim.flight import Flight
from polytempo.sim.simulator import Simulator
from polytempo.strategies import Strategy, make_strategy, strategies
from polytempo.strategies.parts.participation import parse_quota
from polytempo.world.proxies import write_proxies
from serving import Hosted, ManualClock, restarted, running, settled

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
OWN = ["serving:Refresher", "serving:Impatient", "test_contract:Choosy"]
DIVIDING = ["dividing:Casa", "dividing:Cfl", "dividing:Icfl"]


class Choosy(Strategy):
    """Orders with everything in them: candidates, an anchor, a linear term, a mask, layers, questions; and it keeps the
    answers."""

    def setup(self) -> None:
        self.heard: list[tuple[int, int | None, dict[str, Any]]] = []

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
        self.heard.append((update.client, update.chosen, update.answers))
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

    def receive(self, update: Update, now: float) -> Orders:
        flight = self._flight
        assert flight is not None
        happened = Happened("updated", update.client, now, update.steps, flight.generation, tuple(flight.sends))
        self.script.append(happened)
        return self._strategy.receive(update, now)


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
        "model": "test_contract:linear",
        "init": directory / "init.npy",
        "participation": quota,
        "steps": 4,
        "batch_size": 4,
        "lr": 0.1,
    }
    if strategy.needs_proxies:
        write_proxies(directory / "proxies.npz", tiny_proxies())
        given |= {"proxies": directory / "proxies.npz", "warm_up": 0, "data": "building:tiny_dataset"}
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


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", [*strategies, *OWN, *DIVIDING])
def test_the_same_events_end_in_the_same_state_simulated_and_served(name: str, world: str, tmp_path: Path) -> None:
    with simulated(name, world, tmp_path) as (sim, script, given):
        hosted = Hosted(tmp_path, settings=make_settings(**given))
        play(script, sim, hosted)
    assert told(hosted) == [(h.kind, h.client, h.at) for h in script]
    assert digest(hosted.host.service.strategy.save_state()) == digest(sim.evaluator.strategy.save_state())
    assert restarted(hosted.copied(tmp_path / "crashed"), hosted.settings) == hosted.digest()
    hosted.close()


def test_the_scripts_hold_all_that_can_happen(tmp_path: Path) -> None:
    kinds: set[str] = set()
    refreshed = cut_short = 0
    for name in OWN:
        with simulated(name, "restless", tmp_path) as (_, script, _):
            kinds |= {happened.kind for happened in script}
            refreshed += sum(len(happened.sends) for happened in script)
            cut_short += sum(happened.kind == "updated" and 0 < happened.steps < 3 for happened in script)
    assert kinds == {"joined", "ready", "updated", "pulled", "fired", "left"}
    assert refreshed > 5
    assert cut_short


@pytest.mark.parametrize("world", ["slow", "restless"])
@pytest.mark.parametrize("name", DIVIDING)
def test_clusters_do_split_in_the_scripts_and_the_service_tells(
    name: str, world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr("polytempo.serve.narration.log", lambda event, **said: logged.append((event, said)))
    with simulated(name, world, tmp_path) as (sim, script, given):
        hosted = Hosted(tmp_path, settings=make_settings(**given))
        play(script, sim, hosted)
    splits = sim.evaluator.strategy.splits()
    assert splits
    assert [said["why"] for event, said in logged if event == "split"] == [split.why for split in splits]
    hosted.close()


@pytest.mark.parametrize(
    ("name", "world"), [("fedasync", "slow"), ("serving:Impatient", "quota"), ("test_contract:Choosy", "slow")]
)
def test_the_same_events_over_the_network_end_in_the_same_state(name: str, world: str, tmp_path: Path) -> None:
    clock = ManualClock()
    with simulated(name, world, tmp_path) as (sim, script, given), ExitStack() as stack:
        server = stack.enter_context(running(tmp_path, clients=CLIENTS, seconds=clock, patience=1e6, **given))
        clients: dict[int, Client] = {}
        for place, happened in enumerate(script):
            clock.now = happened.at
            tell(server, clients, script, place, sim)
        served = digest(server.host.service.strategy.save_state())
        for client in clients.values():
            client.close()
    assert served == digest(sim.evaluator.strategy.save_state())
    assert restarted(tmp_path, server.settings) == server.host.service.digest()


def tell(server: Any, clients: dict[int, Client], script: list[Happened], place: int, sim: Simulator) -> None:
    happened, number = script[place], script[place].client
    if happened.kind == "joined":
        clients[number] = server.client(number)
        clients[number].wait_for_welcome(30)
    elif happened.kind == "left":
        clients.pop(number).leave(30)
    elif happened.kind == "fired":
        server.host.tick()
        settled(next(iter(clients.values())))
    elif happened.kind == "ready":
        if not (place and ready_follows(script, place - 1) and script[place - 1].kind == "updated"):
            clients[number]._connection.ask(Head(ready=Ready()), timeout=30)
    elif happened.kind == "updated":
        push_over_the_network(clients[number], happened, ready_follows(script, place), sim)


def push_over_the_network(client: Client, happened: Happened, ready: bool, sim: Simulator) -> None:
    task = client.task(30)
    order = order_of(task, happened.client, sim.learner.schema)
    outcome = carried_out(sim, happened, order, task.count, [])
    client.push(
        task,
        {name: tensor.numpy() for name, tensor in sim.learner.schema.views(outcome.weights).items()},
        samples=sim.federation.samples(happened.client, happened.generation),
        steps=happened.steps,
        chosen=outcome.chosen,
        answers=outcome.answers,
        ready=ready,
        timeout=30,
    )
