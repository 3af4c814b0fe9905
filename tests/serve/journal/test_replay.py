"""A journal can be read on its own: any state that it holds, what another strategy would have done, how it is doing."""

import json
from contextlib import closing

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.core.branch import branches
from polytempo.core.errors import UserError
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.replay import newest, replay, what_if
from polytempo.serve.server.status import read_status
from polytempo.serve.storage.errors import JournalError
from polytempo.strategies import Strategy, strategy
from polytempo.strategies.parts.clusters import Clusters
from support.serving import copied, hosted, nudge, running, some_events, tiny_settings

pytestmark = pytest.mark.usefixtures("store")

A, B = 0, 1


@pytest.fixture
def served(tmp_path):
    """Four updates: A, A, B, A; then a clean stop."""
    with running(tmp_path, "fedasync", clients=2, seed=3) as server:
        with server.client(A) as a, server.client(B) as b:
            _ = a.pull(10), b.pull(10)  # both have joined before anyone is ready
            task_a, task_b = a.task(10), b.task(10)
            a.push(task_a, nudge(task_a, 1.0), samples=1, timeout=10)
            task_a = a.task(10)
            a.push(task_a, nudge(task_a, 1.0), samples=1, timeout=10)
            b.push(task_b, nudge(task_b, 1.0), samples=3, timeout=10)
            task_a = a.task(10)
            a.push(task_a, nudge(task_a, 1.0), samples=1, timeout=10)
        digest = server.host.service.digest()
    return tmp_path, digest


def test_a_replay_ends_in_the_servers_digest(served):
    directory, digest = served
    found = replay(directory / "journal")
    assert found.figures()["digest"] == digest
    assert found.updates == 4
    assert found.figures()["mean_staleness"] == 3 / 4  # B's is 2 versions stale, A's third 1


def test_every_state_on_the_way_can_be_rebuilt(served):
    directory, digest = served
    last = Journal(directory / "journal").last
    digests = [replay(directory / "journal", until).figures()["digest"] for until in range(last + 1)]
    assert digests[-1] == digest
    assert len(set(digests)) == last + 1


def test_a_replay_changes_nothing(served, tmp_path_factory):
    directory, _ = served
    before = {path.name: path.read_bytes() for path in (directory / "journal").iterdir()}
    replay(directory / "journal")
    what_if(directory / "journal", tiny_settings(directory, "fedavg"))
    after = {path.name: path.read_bytes() for path in (directory / "journal").iterdir()}
    assert {name: after.get(name) for name in before if not name.endswith(("-wal", "-shm"))} == {
        name: content for name, content in before.items() if not name.endswith(("-wal", "-shm"))
    }


def test_what_if_the_same_strategy_had_run_gives_the_same_model(served):
    directory, _ = served
    same = what_if(directory / "journal", tiny_settings(directory, "fedasync", seed=3)).other
    real = replay(directory / "journal")
    assert same.figures()["mean_staleness"] == real.figures()["mean_staleness"]
    assert torch.allclose(same.service.strategy.model.weights, real.service.strategy.model.weights, atol=1e-6)


def test_what_if_a_synchronous_strategy_had_run_leaves_out_what_it_had_not_asked_for(served):
    directory, _ = served
    other = what_if(directory / "journal", tiny_settings(directory, "fedavg")).other
    # A's first update and B's make a round. A's second came while it waited for B; its third is the second round's.
    assert other.updates + other.unasked == 4
    assert other.unasked == 1
    initial = torch.tensor([0.0, 0.0, 0.0, 1.0, 2.0, 3.0])
    first_round = initial + 1.0  # both moved by one
    assert torch.allclose(other.service.strategy.model.weights, first_round)


def test_what_if_of_a_running_service_compares_states_after_the_same_event(tmp_path, monkeypatch):
    with hosted(tmp_path) as service:
        some_events(service)
        opened = Journal.__init__

        def open_and_push(journal, directory):
            opened(journal, directory)
            service.push(0)  # the service goes on

        monkeypatch.setattr(Journal, "__init__", open_and_push)
        ran = CliRunner().invoke(app, ["replay", str(service.directory), "--strategy", "fedbuff", "--json"])
        real, other = json.loads(ran.stdout).values()
        assert service.host.journal.last > real["event"] == other["event"]
        assert (real["updates"], real["uptime"]) == (other["updates"] + other["unasked"], other["uptime"])


def test_what_if_refuses_a_strategy_that_asks_what_the_journal_cannot_answer(served):
    directory, _ = served

    class Asks(Strategy):
        def order_for(self, client, now):
            return self.train(client, self.model, questions=("loss-statistics",))

    strategy("asks-in-a-test")(Asks)
    with pytest.raises(UserError, match="no answer"):
        what_if(directory / "journal", tiny_settings(directory, "asks-in-a-test"))


@pytest.mark.parametrize("until", [99, 10_000])
def test_a_state_that_the_journal_does_not_hold_is_an_error(served, until):
    with pytest.raises(UserError, match="holds the states after events 0 to"):
        replay(served[0] / "journal", until)


@pytest.fixture
def other_version(monkeypatch):
    monkeypatch.setattr("polytempo.serve.journal.replay.code_versions", lambda _: {"code": "other"})


@pytest.mark.parametrize("read", [lambda directory: replay(directory / "journal"), newest])
def test_the_last_state_of_another_version_is_read_where_a_snapshot_is_the_end(served, other_version, read):
    directory, digest = served
    assert read(directory).figures()["digest"] == digest


def test_the_events_of_another_version_are_not_replayed(served, other_version):
    with pytest.raises(JournalError, match=r"another version.* It can read the states after events 0, "):
        replay(served[0] / "journal", 2)
    with pytest.raises(JournalError, match=r"another version.* take a journal that this version has written"):
        what_if(served[0] / "journal", tiny_settings(served[0]))


@pytest.mark.parametrize("read", [lambda directory: replay(directory / "journal"), newest])
def test_where_another_version_did_not_stop_cleanly_the_message_says_what_to_do(tmp_path, other_version, read):
    with hosted(tmp_path) as crashed:
        some_events(crashed)
    with pytest.raises(JournalError, match="start and stop the service once with this version"):
        read(tmp_path)


def test_the_status_tells_of_clients_versions_staleness_and_branches(served):
    directory, _ = served
    with running(directory, "fedasync", clients=2, seed=3) as server, server.client(A) as a:
        a.pull(10)
        server.host.tick()
        said = read_status(directory / "journal")
        assert said["running"]
    assert said["branches"] == {"model": 4}
    rows = {row["client"]: row for row in said["clients"]}
    assert (rows[A]["updates"], rows[B]["updates"]) == (3, 1)
    assert (rows[B]["version"], rows[B]["staleness"]) == (0, 2)


def test_branches_are_found_wherever_a_strategy_keeps_them(served):
    model = replay(served[0] / "journal").service.strategy.model
    found = dict(branches({"model": model, "clusters": [model, model], "by": {3: model}}))
    assert list(found) == ["model", "clusters.0", "clusters.1", "by.3"]
    assert list(dict(branches({"clusters": Clusters({0: model, 4: model})}))) == [
        "clusters.branches.0",
        "clusters.branches.4",
    ]


def test_the_command_line_replays_and_shows(served, tmp_path_factory):
    directory, digest = served
    out = tmp_path_factory.mktemp("out") / "models.safetensors"
    ran = CliRunner().invoke(app, ["replay", str(directory / "journal"), "--json", "--out", str(out)])
    assert json.loads(ran.stdout)["fedasync"]["digest"] == digest
    models = load_file(out)
    assert models["clients"].tolist() == [A, B]
    assert models["0.weight"].shape == (2, 2)
    asked = ["replay", str(directory / "journal"), "--strategy", "fedbuff", "--set", "buffer_size=2"]
    assert "fedbuff (what if)" in CliRunner().invoke(app, asked).stdout
    shown = CliRunner().invoke(app, ["status", "--dir", str(directory)]).stdout
    assert "not running" in shown
    assert "model: 4" in shown


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["replay", "nowhere"], "holds no journal"),
        (["status", "--dir", "nowhere"], "holds no status"),
        (["replay", "JOURNAL", "--strategy", "fedbuf"], "fedbuff"),
        (["replay", "JOURNAL", "--set", "buffer_size=2"], "--set belongs to --strategy"),
    ],
)
def test_what_is_wrong_is_said(served, arguments, says):
    given = [str(served[0] / "journal") if word == "JOURNAL" else word for word in arguments]
    ran = CliRunner().invoke(app, given)
    assert isinstance(ran.exception, UserError)
    assert says in str(ran.exception)


def test_a_replay_says_from_which_event_on_it_counts(served):
    directory, _ = served
    command = ["replay", str(directory / "journal")]
    assert "counted from" not in CliRunner().invoke(app, command).stdout
    with closing(Journal(directory / "journal")) as journal:
        journal.lock()
        journal.forget_before_last_snapshot()
        last = journal.last
    shown = CliRunner().invoke(app, command).stdout
    assert f"mean_staleness are counted from event {last} on, the oldest snapshot" in shown
    assert "the service has taken 4 updates" in shown
    figures = json.loads(CliRunner().invoke(app, [*command, "--json"]).stdout)["fedasync"]
    assert (figures["from_event"], figures["updates"]) == (last, 0)


def test_a_copy_of_the_directory_goes_on_elsewhere(served, tmp_path_factory):
    directory, digest = served
    elsewhere = copied(directory, tmp_path_factory.mktemp("copy") / "service")
    opened = open_service(elsewhere / "journal", tiny_settings(directory, "fedasync", seed=3))
    assert opened.service.digest() == digest
    opened.journal.close()


def test_a_journal_of_an_older_format_is_refused_with_a_sentence(tmp_path):
    with hosted(tmp_path) as host:
        some_events(host)
        journal = host.host.journal
        journal.describe({**journal.about, "format": 1})
    for read in (replay, lambda directory: open_service(directory, host.settings)):
        with pytest.raises(JournalError, match=r"written by Polytempo 0\.1.*another --dir"):
            read(host.directory)
