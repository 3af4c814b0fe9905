"""Every strategy keeps the contract of ``polytempo.testing``: one sequence of events ends in the same state simulated
and served, bit for bit. Both sides train for themselves, from the orders that they were given."""

from pathlib import Path
from typing import Any

import pytest

from polytempo.core.state import digest
from polytempo.serve.client.join import order_of
from polytempo.serve.journal.settings import make_settings
from polytempo.strategies import strategies
from polytempo.testing.contract import check_in_world
from polytempo.testing.hosting import Hosted, ManualClock, restarted
from polytempo.testing.scripts import CLIENTS, WORLDS, Happened, Replica, play, ready_follows, simulated
from polytempo_client.client import Client
from polytempo_client.protocol.wire_pb2 import Head, Ready
from support.serving import running, settled

OWN = ["support.serving:Refresher", "support.serving:Impatient", "support.choosy:Choosy"]
DIVIDING = ["support.dividing:Casa", "support.dividing:Cfl", "support.dividing:Icfl"]


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", [*strategies, *OWN, *DIVIDING])
def test_a_strategy_keeps_the_contract(name: str, world: str) -> None:
    check_in_world(name, world)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", ["fedasync", "casa", "support.serving:Refresher"])
def test_a_strategy_keeps_the_contract_also_with_the_personal_rule(name: str, world: str) -> None:
    check_in_world(name, world, personal=True)


def test_the_scripts_hold_all_that_can_happen(tmp_path: Path) -> None:
    kinds: set[str] = set()
    refreshed = cut_short = 0
    for name in OWN:
        script = simulated(name, "restless", tmp_path).script
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
    monkeypatch.setattr("polytempo.serve.server.narration.log", lambda event, **said: logged.append((event, said)))
    simulation = simulated(name, world, tmp_path)
    hosted = Hosted(tmp_path, settings=make_settings(**simulation.settings))
    play(simulation.script, simulation.sim, hosted)
    splits = simulation.strategy.splits()
    assert splits
    assert [said["why"] for event, said in logged if event == "split"] == [split.why for split in splits]
    hosted.close()


@pytest.mark.parametrize(
    ("name", "world"),
    [
        ("fedasync", "slow"),
        ("concerto", "slow"),
        ("support.serving:Impatient", "quota"),
        ("support.choosy:Choosy", "slow"),
    ],
)
def test_the_same_events_over_the_network_end_in_the_same_state(name: str, world: str, tmp_path: Path) -> None:
    clock = ManualClock()
    simulation = simulated(name, world, tmp_path)
    with running(tmp_path, clients=CLIENTS, seconds=clock, patience=1e6, **simulation.settings) as server:
        clients: dict[int, Client] = {}
        replica = Replica(simulation.sim)
        for place, happened in enumerate(simulation.script):
            clock.now = happened.at
            tell(server, clients, simulation.script, place, replica)
        served = digest(server.host.service.strategy.save_state())
        for client in clients.values():
            client.close()
    assert served == digest(simulation.strategy.save_state())
    assert restarted(tmp_path, server.settings) == server.host.service.digest()


def tell(server: Any, clients: dict[int, Client], script: list[Happened], place: int, replica: Replica) -> None:
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
        push_over_the_network(clients[number], happened, ready_follows(script, place), replica)


def push_over_the_network(client: Client, happened: Happened, ready: bool, replica: Replica) -> None:
    task, schema = client.task(30), client.schema
    assert schema is not None
    outcome = replica.carried_out(happened, order_of(task, happened.client, schema), task.count, [])
    client.push(
        task,
        {name: tensor.numpy() for name, tensor in schema.views(outcome.weights).items()},
        samples=outcome.samples,
        steps=happened.steps,
        chosen=outcome.chosen,
        answers=outcome.answers,
        jury=outcome.jury,
        ready=ready,
        timeout=30,
    )
