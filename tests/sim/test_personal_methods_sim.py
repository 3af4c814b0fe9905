"""Simulated clients that keep a model of their own: what it costs them, and that nothing of it is lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytempo.core.orders import Work
from polytempo.core.state import digest, load, save
from polytempo.learn.learner import Assignment, Learner
from polytempo.learn.rules import fedala
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.simulator import Simulator
from polytempo.strategies import make_strategy
from polytempo.testing import simulator
from support.plugs import PulledPlugError

METHODS = ["ditto", "apfl", "fedala"]
RESTLESS = (
    'speed = "uniform:3"\n[network]\nup = 50.0\ndown = 90.0\nlatency = 0.25\n'
    "[dropout]\nprobability = 0.3\naway = 7.7\n[[late]]\nclients = 0.4\nby = 20.0\n"
)
WORK = Work(steps=5, epochs=None, batch_size=4, lr=0.1)


def run(method: str, updates: int = 12, **more: Any) -> Simulator:
    sim = simulator(make_strategy(method, {}), 3, stop=Stop(updates=updates), work=WORK, **more)
    sim.run()
    return sim


def restless(method: str, tmp_path: Path) -> Simulator:
    (tmp_path / "devices.toml").write_text(RESTLESS)
    devices = str(tmp_path / "devices.toml")
    return simulator(make_strategy(method, {}), 5, devices, Stop(updates=24), WORK, workers=2)


def state_of(sim: Simulator) -> str:
    saved = sim.save_state()
    return digest(saved["strategy"], saved["personal"], sim.history.evaluations, sim.history.updates)


# What it costs.


@pytest.mark.parametrize(("method", "times"), [("ditto", 2), ("apfl", 2)])
def test_training_two_models_takes_twice_as_long(method: str, times: int) -> None:
    assert run(method).now == pytest.approx(times * run("fedavg").now)


def test_fedala_takes_the_time_in_which_it_learns_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = fedala._learned
    epochs: dict[tuple[int, int], int] = {}

    def noted(learner: Learner, a: Assignment, *more: Any) -> fedala.Learned:
        result = learned(learner, a, *more)
        epochs[a.count, a.order.client] = result.epochs
        return result

    monkeypatch.setattr(fedala, "_learned", noted)
    sim = run("fedala")
    per_epoch = -(-int(0.8 * sim.federation.samples(0, 0)) // WORK.batch_size)
    assert [{epochs[task, client] for client in range(3)} for task in (0, 2, 3)] == [{0}, {1}, {1}]
    assert min(epochs[1, client] for client in range(3)) > 10

    def seconds(task: int, client: int) -> float:
        assert WORK.steps is not None
        return sim.devices.step_seconds(client, task) * (WORK.steps + per_epoch * epochs[task, client])

    assert sim.now == pytest.approx(sum(max(seconds(task, client) for client in range(3)) for task in range(4)))


@pytest.mark.parametrize("method", METHODS)
def test_one_model_goes_up_and_one_down(method: str) -> None:
    personal, fedavg = run(method), run("fedavg")
    assert personal.traffic.bytes_up == fedavg.traffic.bytes_up > 0
    assert personal.traffic.bytes_down == fedavg.traffic.bytes_down


# What clients keep and use.


@pytest.mark.parametrize("method", ["ditto", "apfl"])
def test_the_served_model_is_that_of_fedavg(method: str) -> None:
    found, expected = (run(name).strategy.model_for(0).numpy() for name in (method, "fedavg"))
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_every_client_uses_a_model_of_its_own(method: str) -> None:
    sim = run(method, partition="dirichlet:0.3")
    personal, served = sim.strategy.personal(), sim.strategy.model_for(0)
    assert personal is not None
    used = sim.personal.used(range(3), np.zeros(3, int), lambda client: served, personal, sim.executor)
    assert len({digest(model) for model in (served, *used)}) == 4


@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_has_not_trained_uses_the_served_model(method: str) -> None:
    sim = simulator(make_strategy(method, {}), 3)
    personal, served = sim.strategy.personal(), sim.strategy.model_for(0)
    assert personal is not None
    (used,) = sim.personal.used([0], np.zeros(3, int), lambda client: served, personal, sim.executor)
    assert used is served


@pytest.mark.parametrize("method", METHODS)
def test_a_client_that_drops_out_keeps_what_it_had(method: str, tmp_path: Path) -> None:
    sim = restless(method, tmp_path)
    kept: dict[int, str] = {}
    gone = 0

    def compare() -> None:
        nonlocal gone
        mark = sim.history.marks[-1] if sim.history.marks else {}
        if mark.get("kind") == "left" and mark["time"] == sim.now and mark["client"] in kept:
            assert digest(sim.personal.memories[mark["client"]]) == kept[mark["client"]]
            gone += 1
        kept.update({row["client"]: digest(sim.personal.memories[row["client"]]) for row in sim.history.updates[-1:]})

    sim.run(compare)
    assert gone > 0


@pytest.mark.parametrize("method", METHODS)
def test_a_run_cut_at_any_event_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    whole, events = restless(method, tmp_path), []
    whole.run(lambda: events.append(whole.now))
    for cut in range(1, len(events), max(1, len(events) // 8)):
        sim, count = restless(method, tmp_path), []

        def stop_at_the_cut(sim: Simulator = sim, count: list[None] = count, cut: int = cut) -> None:
            count.append(None)
            if len(count) == cut:
                save(sim.save_state(), tmp_path / "state")
                raise PulledPlugError

        with pytest.raises(PulledPlugError):
            sim.run(stop_at_the_cut)
        resumed = restless(method, tmp_path)
        for name in ("evaluations", "updates", "marks"):
            getattr(resumed.history, name).extend(getattr(sim.history, name))
        resumed.load_state(load(tmp_path / "state"))
        resumed.run()
        assert state_of(resumed) == state_of(whole), cut
