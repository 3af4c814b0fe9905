"""PACE and its family under the service: multicasts to clients in training, buffers that change in place beside a
network and a journal, answers that nobody checked."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.core.orders import Send
from polytempo.core.state import digest, unpack
from polytempo.learn.learner import Assignment
from polytempo.serve.client.join import Trained, carry_out, order_of
from polytempo.serve.client.own_data import make_join_settings, make_local
from polytempo.serve.journal.replay import replay
from polytempo.serve.journal.settings import make_settings
from polytempo.strategies.methods.fedsac import SUBSPACE
from polytempo.strategies.methods.pace import Pace
from polytempo.testing.scripts import play, simulated, told
from polytempo_client.protocol.wire_pb2 import Head, Pull
from support.joining import LINEAR, Gated, data
from support.serving import Hosted, hosted, nudge, restarted, running


class Restless(Pace):
    """PACE that multicasts as soon as two clients in training have missed two updates each."""

    omega: float = 7.0


# Real clients


def test_a_multicast_reaches_a_client_in_the_middle_of_training(tmp_path: Path) -> None:
    gated = {**LINEAR, "model": "support.joining:Gated"}
    given = {"model": gated["model"], "data": gated["data"], "init": None, "steps": 12, "batch_size": 4}
    with (
        running(tmp_path, "pace", parameters={"omega": 1}, **given) as server,
        server.client(0) as trainer,
        server.client(1) as sender,
        server.client(2) as waiting,
        ThreadPoolExecutor(1) as pool,
    ):
        for client, by in ((trainer, 0.1), (sender, 0.5), (waiting, -0.3)):
            task = client.task(30)
            client.push(task, nudge(task, by), samples=5, ready=False, timeout=30)
        service, pace = server.host.service, server.host.service.strategy

        number, schema, seed = trainer.wait_for_welcome(30)
        local = make_local(make_join_settings(**gated), data(), number, seed)
        order = order_of(trainer.task(30), number, schema)
        idle = waiting.task(30)
        trained: list[Trained] = []
        Gated.close()
        pushed = pool.submit(trainer.run, lambda task: carry_out(task, local, trained.append), 1)
        assert Gated.reached.wait(60)

        task = sender.task(30)
        sender.push(task, nudge(task), samples=5, ready=False, timeout=30)
        phi = [pace.models.copy(client) for client in range(3)]
        assert pace.started.tolist() == [4, -1, 4]  # two models, one update old: 1 + 1 > 1
        for client in (trainer, waiting):
            client.pull(30)  # what was sent before this answer has arrived
        Gated.opened.set()
        pushed.result(60)

        assert not torch.equal(phi[0], order.weights)
        told = Assignment(order, local.x, local.y, local.train, 12, 1, seed, ((1, Send(0, phi[0], 4)),))
        assert torch.equal(pace.models.view(0), local.learner.carry_out(told).update.weights)
        assert [(done.version, done.steps) for done in trained] == [(4, 12)]
        assert (service.members[0].version, service.members[0].staleness) == (4, 0)

        (refresh,) = idle.refreshes()
        assert refresh.version == 4
        assert all((refresh.tensors[name] == own.numpy()).all() for name, own in schema.views(phi[2]).items())
        assert not torch.equal(phi[2], phi[0])


# Crashes


def half_a_multicast(served: Hosted) -> None:
    """Clients 0 and 1 are sent their buffers in training; client 0 hands in what it made of it."""
    for client in range(3):
        served.hello(client)
        served.ready(client)
    for client in range(3):
        served.push(client, by=0.1 * (client + 1))
    served.push(2)
    flights = served.host.service.flights
    assert [len(flights[client].sends) for client in range(3)] == [1, 1, 0]
    served.push(0)
    assert served.host.service.members[0].staleness == 0


def test_a_multicast_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with hosted(tmp_path, "test_collaboration_served:Restless") as served, caplog.at_level("INFO"):
        half_a_multicast(served)
    (told,) = [record.fields for record in caplog.records if record.getMessage() == "refresh"]  # type: ignore[attr-defined]
    assert told == {"clients": [0, 1]}


def test_a_killed_service_comes_back_to_its_buffers_graph_and_versions(tmp_path: Path) -> None:
    with hosted(tmp_path, "test_collaboration_served:Restless") as served:
        half_a_multicast(served)
        again = served.after_crash(tmp_path / "crash")
        assert again.digest() == served.digest()
        before, after = served.host.service.strategy, again.host.service.strategy
        assert torch.equal(before.models.matrix, after.models.matrix)
        assert before.graph.weights.tolist() == after.graph.weights.tolist()
        assert before.started.tolist() == after.started.tolist()

        again.hello(1, again.task(1), heeded=again.task(1))  # it did not hear of its buffer before the crash
        head, _ = again.sessions[1].sent[-1]
        assert (head.WhichOneof("kind"), head.model.version, head.model.task) == ("model", 4, again.task(1))
        again.push(1)
        assert (again.host.service.members[1].version, again.host.service.members[1].staleness) == (4, 1)
        assert restarted(again.copied(tmp_path / "again"), served.settings) == again.digest()
        assert (
            replay(again.directory, allowed=["test_collaboration_served:Restless"]).service.digest() == again.digest()
        )
        again.close()


def test_a_snapshot_holds_what_was_whatever_happens_while_it_is_written(tmp_path: Path) -> None:
    with hosted(tmp_path, "test_collaboration_served:Restless") as served:
        half_a_multicast(served)
        before = served.digest()
        frozen = served.host.service.frozen()
        served.push(1)
        loaded = served.opened.begin()
        loaded.load_state(unpack(*frozen))
        assert loaded.digest() == before != served.digest()


# Both drivers


@pytest.mark.parametrize("world", ["slow", "restless"])
def test_multicasts_end_in_the_same_state_simulated_and_served(world: str, tmp_path: Path) -> None:
    simulation = simulated("test_collaboration_served:Restless", world, tmp_path)
    script = simulation.script
    served = Hosted(tmp_path, settings=make_settings(**simulation.settings))
    play(script, simulation.sim, served)
    assert sum(len(happened.sends) for happened in script) > 2
    assert told(served) == [(happened.kind, happened.client, happened.at) for happened in script]
    assert digest(served.host.service.strategy.save_state()) == digest(simulation.strategy.save_state())
    assert restarted(served.copied(tmp_path / "crashed"), served.settings) == served.digest()
    served.close()


# What clients see and say


def test_a_model_that_was_pulled_does_not_change_before_it_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, "pace") as served:
        for client in range(2):
            served.hello(client)
            served.ready(client)
        outbox: list[Any] = []
        with monkeypatch.context() as patched:
            patched.setattr(served.sessions[0], "send", lambda message, answers=0: outbox.append(message))
            served.host.handle([served.request(0, Head(pull=Pull()))])
        [(_, body)] = outbox
        before = b"".join(body)
        served.push(1)
        assert b"".join(body) == before


RUBBISH = {
    "words": "north",
    "no table": [[1.0], [1.0, 2.0]],
    "one number": 3,
    "names": {"a": [[1.0]]},
    "integers without end": [[10**400, 1]],
    "far too long": [[1e308, 1e308], [-1e308, 1e308]],
    "zeros": [[0.0, 0.0]],
    "more directions than features": torch.ones(20_000, 1),
    "deep": torch.zeros(1, 1, 1),
}


@pytest.mark.parametrize("name", ["fedsac", "fedsac-async", "fedsac-pace"])
@pytest.mark.parametrize("answer", RUBBISH.values(), ids=RUBBISH)
def test_a_client_that_answers_with_rubbish_hurts_nobody(tmp_path: Path, name: str, answer: Any) -> None:
    with hosted(tmp_path, name) as served:
        for client in range(3):
            served.hello(client)
            served.ready(client)
        for _ in range(2):
            for client, said in enumerate((answer, [[0.6, 0.8]], [[0.0, 1.0]])):
                assert served.push(client, answers={SUBSPACE: said}).WhichOneof("kind") != "refusal"
        strategy = served.host.service.strategy
        assert list(strategy.subspaces) == [1, 2]
        assert not any(session.ended for session in served.sessions.values())
        for client in range(3):
            assert torch.isfinite(strategy.model_for(client)).all()


def test_the_status_shows_no_versions_and_clusters_of_models_that_are_each_clients_own(tmp_path: Path) -> None:
    with hosted(tmp_path, "test_collaboration_served:Restless") as served:
        half_a_multicast(served)
        host = served.host
        host.write_status(stopping=True)
        shown = CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).stdout
        own = ["--allow-import", "test_collaboration_served:Restless"]
        replayed = CliRunner().invoke(app, ["replay", str(served.directory), "--json", *own]).stdout
    assert "5 updates" in shown
    assert "versions:" not in shown
    assert "cluster" not in shown
    assert '"version": null' in replayed
