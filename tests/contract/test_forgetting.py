"""Every strategy forgets a client: nothing that it handed in is left in the state, but for what models have learnt."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polytempo.core.branch import branches
from polytempo.core.events import Update
from polytempo.core.orders import Orders
from polytempo.core.state import pack
from polytempo.serve.journal.settings import ServiceSettings
from polytempo.sim.records.evaluation import Stop
from polytempo.strategies import Strategy, make_strategy, strategies
from polytempo.strategies.base.strategy import Setting, strategy_class
from polytempo.strategies.base.wrapper import Wrapper
from polytempo.strategies.parts.robust import Robust, parse_robust
from polytempo.testing.building import simulator
from polytempo.testing.scripts import Call, Recorder, Simulation, simulated
from polytempo_client.model.schema import Schema

CLIENT = 1
SAMPLES = 7919
"""What the client claims; no other number is the same."""


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


def begun(simulation: Simulation) -> Strategy:
    made = make_strategy(simulation.settings["strategy"], simulation.settings["parameters"])
    made.begin(simulation.strategy.setting)
    return made


def tell(strategy: Strategy, call: Call) -> None:
    list(getattr(strategy, call.event)(call.subject, call.now) or ())


def handed_in(calls: list[Call]) -> Iterator[bytes]:
    """The weights and deltas of the client so far."""
    for call in calls:
        if isinstance(call.subject, Update) and call.subject.client == CLIENT and call.subject.delta.any():
            yield bytes_of(call.subject.weights)
            yield bytes_of(call.subject.delta)


def remains(strategy: Strategy, vectors: set[bytes]) -> list[bytes]:
    """Vectors that are in the state, also as a part of a tensor; models that clients share aside."""
    state = strategy.save_state()
    models = {bytes_of(branch.weights) for _, branch in branches(state)}
    kept = [bytes_of(tensor) for tensor in pack(state)[1]]
    return [vector for vector in vectors - models if any(vector in tensor for tensor in kept)]


def check_forgets(simulation: Simulation) -> None:
    """The client is forgotten when it has just handed in: the first times, and the last time."""
    calls = simulation.calls
    moments = [i for i, call in enumerate(calls, 1) if call.event == "updated" and call.subject.client == CLIENT]
    assert moments
    for moment in {*moments[:3], moments[-1]}:
        strategy = begun(simulation)
        for call in calls[:moment]:
            tell(strategy, call)
        list(strategy.left(CLIENT, calls[moment - 1].now) or ())
        strategy.forget(CLIENT)
        assert not remains(strategy, set(handed_in(calls[:moment]))), f"after event {moment}"


@pytest.mark.parametrize("name", [*strategies])
def test_nothing_that_a_forgotten_client_handed_in_is_left(name: str, tmp_path: Path) -> None:
    check_forgets(simulated(name, "slow", tmp_path))


def test_vectors_that_are_compared_are_forgotten_too(tmp_path: Path) -> None:
    check_forgets(simulated("pfedgraph-async", "slow", tmp_path, {"compared": "delta"}))
    check_forgets(simulated("casa", "slow", tmp_path, {"source": "weights"}))


def test_a_forgotten_clients_utility_leaves_the_window_of_oorts_pacer() -> None:
    strategy = alone("oort")
    pacer: Any = strategy
    while isinstance(pacer, Wrapper):
        pacer = pacer.inner
    assert pacer.gathered > 0
    strategy.forget(0)
    assert pacer.gathered == pacer.gathered_before == 0


def test_robust_mixing_forgets_a_client() -> None:
    robust = Robust(make_strategy("fedasync", {}), 3.0, parse_robust("median"))
    initial = torch.zeros(6)
    robust.begin(Setting(initial, Schema(("weight",), ((6,),), 6)))
    handed = torch.arange(6.0) + 0.5
    for client in range(3):
        robust.joined(client, 0.0)
    for client in range(3):
        robust.updated(Update(client, 0, initial, handed + client, 1, 1), 1.0)
    list(robust.left(CLIENT, 2.0) or ())
    assert remains(robust, {bytes_of(handed + CLIENT)}), "it is kept until the next update"
    robust.forget(CLIENT)
    assert not remains(robust, {bytes_of(handed + CLIENT)})
    assert [CLIENT in kept for kept in (robust.norms, robust.recent, robust.moved)] == [False] * 3
    assert remains(robust, {bytes_of(handed)}), "what others handed in stays"


def alone(name: str) -> Strategy:
    return alone_with_first_vectors(name)[0]


def alone_with_first_vectors(name: str) -> tuple[Strategy, list[Tensor]]:
    """A strategy with the defences that ``serve`` sets by default, after a client that was alone with it has left, and
    the vectors of its state before. The cap is so high that the strategy is told the client's own claim, too."""
    settings = ServiceSettings(strategy=name, model="unused", samples_cap=1e6)
    strategy = settings.make()
    engine = "auto" if strategy.needs_proxies else "eager"
    sim = simulator(settings.make(), 1, stop=Stop(updates=12), engine=engine)
    strategy.begin(sim.strategy.setting)
    first = vectors_of(strategy)
    recorder = Recorder(sim)
    sim.run()
    for call in recorder.calls:
        claimed = replace(call.subject, samples=SAMPLES) if isinstance(call.subject, Update) else call.subject
        tell(strategy, replace(call, subject=claimed))
    list(strategy.left(0, recorder.calls[-1].now) or ())
    return strategy, first


def vectors_of(strategy: Strategy) -> list[Tensor]:
    """Those of its state that are as long as a model."""
    size = strategy.setting.schema.size
    kept = [tensor for tensor in pack(strategy.save_state())[1] if tensor.numel() % size == 0]
    return [row.clone() for tensor in kept for row in tensor.reshape(-1, size)]


def unexplained(strategy: Strategy, first: list[Tensor]) -> list[Tensor]:
    """Vectors of the state that are neither zeros nor models nor there before anybody handed in. If only one client
    has ever handed in, they are its updates, their sums or their squares."""
    models = [branch.weights for _, branch in branches(strategy.save_state())]
    explained = [strategy.setting.initial, *models, *first]
    return [
        row for row in vectors_of(strategy) if row.any() and not any(torch.equal(row, model) for model in explained)
    ]


@pytest.mark.parametrize("name", [*strategies])
def test_no_sum_of_what_a_forgotten_client_handed_in_and_no_claim_of_it_is_left(name: str) -> None:
    strategy, first = alone_with_first_vectors(name)
    assert str(SAMPLES) in pack(strategy.save_state())[0]
    strategy.forget(0)
    assert not unexplained(strategy, first)
    assert str(SAMPLES) not in pack(strategy.save_state())[0]


@pytest.mark.parametrize("name", [*strategies])
def test_a_strategy_goes_on_when_everybody_who_leaves_is_forgotten(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cls: Any = strategy_class(name)
    left = cls.left

    def left_and_forgotten(self: Strategy, client: int, now: float) -> Orders:
        orders = list(left(self, client, now) or ())
        self.forget(client)
        return orders

    monkeypatch.setattr(cls, "left", left_and_forgotten)
    simulation = simulated(name, "restless", tmp_path)
    assert any(call.event == "left" for call in simulation.calls)
    assert all(torch.isfinite(tensor).all() for tensor in map(simulation.strategy.model_for, range(5)))
