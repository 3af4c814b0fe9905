"""``branch``: a client asks which branch it belongs to. It is told, and nothing has happened."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.orders import Orders
from polytempo.core.splits import Regrouping
from polytempo.serve.journal.replay import replay
from polytempo.strategies import Setting
from polytempo.strategies.parts.clusters import Clustered
from polytempo_client.errors import RefusedError
from polytempo_client.protocol import wire_pb2 as pb
from polytempo_client.protocol.tasks import Membership
from support.serving import FakeSession, Hosted, hosted, join_all, nudge, refused, running, settled


class Movable(Clustered):
    """Two clusters; a client goes to the one that its answers name, and its update with it."""

    def setup(self) -> None:
        self.moves: list[Regrouping] = []

    def first_branches(self, setting: Setting) -> Mapping[int, Branch]:
        return {0: Branch(setting.initial), 1: Branch(setting.initial.clone())}

    def joined(self, client: int, now: float) -> Orders:
        orders = super().joined(client, now)
        if client in self.clusters.newcomers:
            self.clusters.assign(client, 0)
        return orders

    def updated(self, update: Update, now: float) -> None:
        source, target = self.clusters.of(update.client), update.answers.get("to", 0)
        self.clusters.assign(update.client, target)
        self.clusters.branches[target].mix(update.weights, 0.5)
        if source != target:
            kind: Any = "expansion" if target else "merge"
            self.moves.append(Regrouping(now, kind, source, target, (update.client,), {"divergence": 0.25}))

    def regroupings(self) -> Sequence[Regrouping]:
        return self.moves


def membership(served: Hosted, client: int) -> tuple[int, int, int]:
    said = served.ask(client, pb.Head(branch=pb.Branch())).membership
    return said.branch, said.version, said.members


def test_the_answer_follows_a_reassignment(tmp_path: Path) -> None:
    with hosted(tmp_path, "test_branch:Movable") as served:
        join_all(served, 3)
        assert [membership(served, client) for client in range(3)] == [(0, 0, 3)] * 3
        for _ in range(2):
            served.push(1, answers={"to": 1})
        served.push(2)
        assert [membership(served, client) for client in range(3)] == [(0, 1, 2), (1, 2, 1), (0, 1, 2)]


def test_the_version_is_that_of_the_model_that_a_pull_brings(tmp_path: Path) -> None:
    with hosted(tmp_path, "test_branch:Movable") as served:
        join_all(served, 3)
        for client, to in ((0, 1), (0, 1), (1, 0), (2, 1)):
            served.push(client, answers={"to": to})
        for client in range(3):
            assert membership(served, client)[1] == served.pull(client).model.version


def test_only_clients_that_are_there_are_counted(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served, 3)
        served.leave(2)
        assert membership(served, 0) == (0, 0, 2)
        served.disconnect(1)  # within the patience it is still there
        assert membership(served, 0) == (0, 0, 2)


def test_one_model_for_all_is_branch_0(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served, 2)
        served.push(0)
        assert [membership(served, client) for client in range(2)] == [(0, 1, 2)] * 2


@pytest.mark.parametrize(("name", "versions"), [("standalone", (0, 1)), ("pace", (-1, -1))])
def test_with_a_model_of_its_own_a_client_is_alone_on_its_branch(
    name: str, versions: tuple[int, int], tmp_path: Path
) -> None:
    with hosted(tmp_path, name) as served:
        join_all(served, 2)
        served.push(1)
        assert [membership(served, client) for client in range(2)] == [(0, versions[0], 1), (1, versions[1], 1)]


@pytest.mark.parametrize("name", ["test_branch:Movable", "standalone", "casa", "pace"])
def test_the_question_is_not_an_event(name: str, tmp_path: Path) -> None:
    with hosted(tmp_path, name) as served:
        join_all(served, 3)
        before, events = served.digest(), served.events()
        for client in range(3):
            membership(served, client)
        assert served.digest() == before
        assert served.events() == events


def test_a_stranger_is_told_to_say_hello_first(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        served.sessions[0] = FakeSession(0)
        assert refused(served.ask(0, pb.Head(branch=pb.Branch())), "say hello first")
        served.hello(0)
        served.leave(0)
        assert refused(served.ask(0, pb.Head(branch=pb.Branch())), "say hello first")


def test_a_question_behind_a_push_of_the_same_group_sees_what_the_push_did(tmp_path: Path) -> None:
    with hosted(tmp_path, "test_branch:Movable") as served:
        join_all(served, 3)
        push = served.request(0, *served.pushed(0, answers={"to": 1}))
        served.host.handle([push, served.request(0, pb.Head(branch=pb.Branch()))])
        head, _ = served.sessions[0].sent[-1]
        assert (head.membership.branch, head.membership.members) == (1, 1)


def test_a_client_asks_over_the_network_in_the_middle_of_a_task(tmp_path: Path) -> None:
    with (
        running(tmp_path, "test_branch:Movable") as server,
        server.client(0) as client,
        server.client(1) as other,
    ):
        settled(other)
        task = client.task(30)
        assert client.branch(30) == other.branch(30) == Membership(branch=0, version=0, members=2)
        client.push(task, nudge(task), samples=5, answers={"to": 1}, timeout=30)
        assert client.branch(30) == Membership(branch=1, version=1, members=1)
        assert other.branch(30) == Membership(branch=0, version=0, members=1)
        assert not client.task(30).withdrawn


def test_a_request_that_the_server_does_not_know_is_refused_and_the_client_goes_on(tmp_path: Path) -> None:
    """As an older server does with ``branch``."""
    unknown = pb.Head.FromString(b"\xfa\x01\x00")  # field 31 of the head, an empty message
    with running(tmp_path) as server, server.client(0) as client:
        task = client.task(30)
        with pytest.raises(RefusedError, match="known kind: is its sender a newer version"):
            client._connection.ask(unknown, timeout=30)
        assert client.branch(30).members == 1
        client.push(task, nudge(task), samples=5, timeout=30)
        assert server.host.service.updates == 1


def test_expansions_and_merges_are_logged_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with hosted(tmp_path, "test_branch:Movable") as served, caplog.at_level("INFO"):
        join_all(served, 3)
        served.clock.now = 2.5
        for client, to in ((0, 1), (1, 1), (0, 0)):
            served.push(client, answers={"to": to})
        figures = replay(served.directory, allowed=["test_branch:Movable"]).figures()
    told = [(it.getMessage(), it.fields) for it in caplog.records if it.getMessage() in ("expansion", "merge")]  # type: ignore[attr-defined]
    moved = {"at": 2.5, "clients": 1, "why": {"divergence": 0.25}}
    assert told == [
        ("expansion", {**moved, "source": 0, "target": 1}),
        ("expansion", {**moved, "source": 0, "target": 1}),
        ("merge", {**moved, "source": 1, "target": 0}),
    ]
    assert (figures["splits"], figures["expansions"], figures["merges"]) == (0, 2, 1)
