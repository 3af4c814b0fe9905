"""EchoPFL under the service: clusters that expand and merge on a journal, answers that nobody checked."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.core.errors import UserError
from polytempo.core.state import digest
from polytempo.serve.journal.replay import replay, what_if
from polytempo.serve.journal.settings import make_settings
from polytempo.strategies.methods.echopfl import EchoPFL
from polytempo.strategies.parts.echo import Policy
from polytempo.testing.scripts import play, simulated, told
from polytempo_client.protocol.wire_pb2 import Head, Pull
from support.echoing import BY_L1
from support.serving import Hosted, hosted, join_all, refused, restarted, tiny_settings

CLIENTS = 6

TOGETHER = {**BY_L1, "first_clusters": 1, "broadcast": "always"}
RESTLESS = {**BY_L1, "first_clusters": 1, "merge_above": 1, "refine_every": 12}
"""Clusters are expanded after every twelve updates, and six later merged into one."""


def fit(feedback: Any = 0.5, soft_labels: Any = (0.25, 0.75)) -> dict[str, Any]:
    """What an honest client answers."""
    return {"fit": {"feedback": feedback, "soft_labels": list(soft_labels)}}


def strategy_of(served: Hosted) -> Any:
    return served.host.service.strategy


def weights_of(body: bytearray) -> torch.Tensor:
    """The six numbers of the tiny model at the end of a body."""
    return torch.frombuffer(body[-24:], dtype=torch.float32)


# Broadcasts


@pytest.mark.parametrize(("policy", "broadcasts"), [("always", 3), ("never", 0)])
def test_a_broadcast_goes_to_the_members_in_training_and_is_logged(
    policy: Policy, broadcasts: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hosted(tmp_path, "echopfl", parameters={**TOGETHER, "broadcast": policy}) as served:
        join_all(served, 3)
        with caplog.at_level("INFO"):
            for client in range(3):
                served.push(client, answers=fit(), ready=client != 2)
            served.push(0, answers=fit())
    told = [record.fields["clients"] for record in caplog.records if record.getMessage() == "refresh"]  # type: ignore[attr-defined]
    assert told == [[0], [0, 1], [1]][:broadcasts]  # the first update founds the cluster, and 2 is not in training


def test_a_pull_in_the_middle_of_training_is_answered_and_refreshes_it(tmp_path: Path) -> None:
    with hosted(tmp_path, "echopfl", parameters={**TOGETHER, "broadcast": "never"}) as served:
        join_all(served, 2)
        for client in range(2):
            served.push(client, answers=fit())
        head = served.ask(0, Head(pull=Pull()))
        _, body = served.sessions[0].sent[-1]
        assert (head.model.version, head.model.task) == (2, served.task(0))
        assert torch.equal(weights_of(body), strategy_of(served).model_for(0))
        served.push(0, answers=fit())
        assert served.host.service.members[0].staleness == 0


# Crashes


def restless_events(served: Hosted, first: int = 0, last: int = 45) -> None:
    """Updates in turn, of clients who fit worse the higher their number; some leave and come again."""
    for i in range(first, last):
        client = (i * 5) % CLIENTS
        served.clock.now += 1.25
        served.push(
            client, by=0.1 * (client - 2) + 0.01 * i, answers=fit(0.1 * client, [0.1 * client, 1 - 0.1 * client])
        )
        if i % 7 == 3:
            served.pull(client)
        if i % 11 == 6:
            served.leave(client)
            served.hello(client)
            served.ready(client)


def kinds(served: Hosted) -> list[str]:
    return [moved.kind for moved in strategy_of(served).regroupings()]


@pytest.mark.parametrize("policy", ["accumulated", "eq4", "rnn", "always"])
def test_a_killed_service_comes_back_across_expansions_and_merges(tmp_path: Path, policy: Policy) -> None:
    with hosted(tmp_path, "echopfl", parameters={**RESTLESS, "broadcast": policy}) as served:
        join_all(served, CLIENTS)
        restless_events(served, last=13)
        assert kinds(served) == ["expansion"]
        again = served.after_crash(tmp_path / "crash")
        assert again.digest() == served.digest()

        for client in range(CLIENTS):
            again.hello(client, again.task(client), again.task(client))
        for either in (served, again):
            restless_events(either, 13)
            assert {"expansion", "merge"} <= set(kinds(either)[1:])
        assert digest(strategy_of(again).save_state()) == digest(strategy_of(served).save_state())
        assert restarted(served.copied(tmp_path / "late"), served.settings) == served.digest()
        assert replay(served.directory).service.digest() == served.digest()
        again.close()


def test_a_client_that_missed_a_broadcast_in_a_crash_is_sent_it_again(tmp_path: Path) -> None:
    with hosted(tmp_path, "echopfl", parameters=TOGETHER) as served:
        join_all(served, 2)
        for client in (0, 1, 0):
            served.push(client, answers=fit())
        again = served.after_crash(tmp_path / "crash")
        task = again.task(1)
        again.hello(1, task, heeded=task)
        head, body = again.sessions[1].sent[-1]
        assert (head.WhichOneof("kind"), head.model.version, head.model.task) == ("model", 3, task)
        assert torch.equal(weights_of(body), strategy_of(again).model_for(1))
        again.close()


# Both drivers


class Restless(EchoPFL):
    """EchoPFL that broadcasts, expands and merges all the time."""

    first_clusters: int = 1
    merge_above: float = 1.0
    refine_every: int | None = 4
    broadcast: Policy = "always"
    alike_below: float = 0.0


class Thoughtful(Restless):
    """The same with the predictor."""

    broadcast: Policy = "rnn"


class Tried(Restless):
    """The same with all models for everybody."""

    assignment: Any = "loss"


@pytest.mark.parametrize("world", ["slow", "restless"])
@pytest.mark.parametrize("name", ["Restless", "Thoughtful", "Tried"])
def test_echoes_end_in_the_same_state_simulated_and_served(
    name: str, world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polytempo.strategies.parts.refinement.FEWEST", 3)
    simulation = simulated(f"test_echopfl_served:{name}", world, tmp_path)
    script = simulation.script
    served = Hosted(tmp_path, settings=make_settings(**simulation.settings))
    play(script, simulation.sim, served)
    assert sum(len(happened.sends) for happened in script) > 2
    assert kinds(served)
    assert told(served) == [(happened.kind, happened.client, happened.at) for happened in script]
    assert digest(strategy_of(served).save_state()) == digest(simulation.strategy.save_state())
    assert restarted(served.copied(tmp_path / "crashed"), served.settings) == served.digest()
    served.close()


# Answers that nobody checked

RUBBISH = {
    "words": "north",
    "a number": 3,
    "nothing": None,
    "a list": [0.5, [0.25, 0.75]],
    "a tensor": torch.ones(3),
    "no names": {},
    "feedback in words": fit("bad")["fit"],
    "negative feedback": fit(-1.0)["fit"],
    "feedback without end": fit(10**400)["fit"],
    "labels in words": fit(soft_labels="ab")["fit"],
    "no labels": fit(soft_labels=[])["fit"],
    "negative labels": fit(soft_labels=[1.5, -0.5])["fit"],
    "labels that sum to nothing": fit(soft_labels=[0.0, 0.0])["fit"],
    "labels far too large": fit(soft_labels=[1e308, 1e308])["fit"],
    "integers without end": fit(soft_labels=[10**400, 1])["fit"],
    "a table of labels": {"feedback": 0.5, "soft_labels": [[0.5, 0.5], [0.5, 0.5]]},
    "another number of classes": fit(soft_labels=[0.25] * 4)["fit"],
    "a tensor of labels": {"feedback": 0.5, "soft_labels": torch.eye(2)},
    "huge feedback": fit(1e308)["fit"],
}


@pytest.mark.parametrize("assignment", ["l1", "kl"])
@pytest.mark.parametrize("answer", RUBBISH.values(), ids=RUBBISH)
def test_a_client_that_answers_with_rubbish_hurts_nobody(tmp_path: Path, assignment: str, answer: Any) -> None:
    with hosted(tmp_path, "echopfl", parameters={**RESTLESS, "assignment": assignment}) as served:
        join_all(served, CLIENTS)
        labels = answer["soft_labels"] if isinstance(answer, dict) and "soft_labels" in answer else answer
        for _ in range(6):
            for client, place in enumerate((-3.0, 0.1, 0.2, 0.3, 0.4, 3.0)):
                said = fit(0.1 * client) | {"soft-labels": [0.25, 0.75]}
                mine = said if client else {"fit": answer, "soft-labels": labels}
                head = served.push(client, weights=torch.full((6,), place), answers=mine)
                assert head.WhichOneof("kind") == "task", head
        strategy = strategy_of(served)
        assert sorted(client for members in strategy.clusters.members.values() for client in members) == [*range(6)]
        assert {"expansion", "merge"} == set(kinds(served))
        assert not any(session.ended for session in served.sessions.values())
        assert restarted(served.copied(tmp_path / "crashed"), served.settings) == served.digest()
        for client in range(CLIENTS):
            assert torch.isfinite(strategy.model_for(client)).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_answers_that_are_no_numbers_are_refused(tmp_path: Path, bad: float) -> None:
    with hosted(tmp_path, "echopfl", parameters=BY_L1) as served:
        join_all(served, 1)
        before = served.digest()
        for answers in (fit(bad), fit(0.5, [bad, 0.5]), {"fit": torch.tensor([bad])}):
            assert refused(served.push(0, answers=answers), "NaN or Inf")
        assert refused(served.push(0), "the answer to 'fit' is missing")
        assert served.digest() == before


@pytest.mark.parametrize("policy", ["accumulated", "eq4", "rnn", "always"])
@pytest.mark.parametrize("assignment", ["l1", "cosine"])
def test_a_model_that_grows_as_fast_as_it_may_keeps_to_its_own_cluster(
    tmp_path: Path, assignment: str, policy: Policy
) -> None:
    parameters = {**BY_L1, "assignment": assignment, "broadcast": policy, "counts_as": 1e30, "refine_every": 4}
    with hosted(tmp_path, "echopfl", norm_bound=1e30, parameters=parameters) as served:
        join_all(served, 3)
        for large in (4e18, 8e18, 1.2e19, 8e18):  # the norm of the third is infinite
            for client, weight in enumerate((0.1, large, 0.2)):
                head = served.push(client, weights=torch.full((6,), weight), answers=fit())
                assert head.WhichOneof("kind") == "task", head
        for large in (3e38, -3e38):
            assert refused(served.push(1, weights=torch.full((6,), large), answers=fit()), "exceeds 1e+19")
        strategy = strategy_of(served)
        assert strategy.cluster_of(0) == strategy.cluster_of(2) != strategy.cluster_of(1)
        assert torch.equal(strategy.model_for(0), torch.full((6,), 0.2))
        assert restarted(served.copied(tmp_path / "crashed"), served.settings) == served.digest()


# What if


def test_an_echopfl_journal_can_be_tried_under_other_parameters(tmp_path: Path) -> None:
    with hosted(tmp_path, "echopfl", parameters=RESTLESS) as served:
        join_all(served, CLIENTS)
        restless_events(served)
        real = replay(served.directory).figures()

    def figures(**parameters: Any) -> dict[str, Any]:
        method = tiny_settings(tmp_path, "echopfl", parameters=parameters)
        return what_if(served.directory, method).other.figures()

    same, still = figures(**RESTLESS), figures(**{**RESTLESS, "refine_every": 0})
    compared = ("updates", "unasked", "expansions", "merges", "mean_staleness", "version")
    assert {name: same[name] for name in compared} == {name: real[name] for name in compared}
    assert (still["updates"], still["expansions"], still["merges"]) == (45, 0, 0)
    for parameters in ({"assignment": "loss"}, {"assignment": "kl"}):
        with pytest.raises(UserError, match="has no answer to"):
            figures(**parameters)


def test_a_journal_without_answers_cannot_be_tried_under_echopfl_unless_it_asks_for_none(tmp_path: Path) -> None:
    with hosted(tmp_path, "fedasync") as served:
        join_all(served, 2)
        for client in (0, 1, 0):
            served.push(client)
    with pytest.raises(UserError, match="has no answer to"):
        what_if(served.directory, tiny_settings(tmp_path, "echopfl"))
    by_l1 = {"assignment": "l1", "refine_every": 0}
    other = what_if(served.directory, tiny_settings(tmp_path, "echopfl", parameters=by_l1)).other
    assert (other.updates, other.unasked) == (3, 0)


# What is shown


def test_the_status_shows_the_versions_and_the_members_of_clusters(tmp_path: Path) -> None:
    with hosted(tmp_path, "echopfl", parameters=RESTLESS) as served:
        join_all(served, CLIENTS)
        restless_events(served, last=13)
        host = served.host
        host.write_status(stopping=True)
        shown = CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).stdout
        replayed = CliRunner().invoke(app, ["replay", str(served.directory), "--json"]).stdout
    first, second = strategy_of(served).clusters.branches.values()
    assert f"versions: cluster 0: {first.version}, cluster 1: {second.version}" in shown
    assert "cluster" in shown.splitlines()[2]
    assert '"expansions": 1, "merges": 0' in replayed
