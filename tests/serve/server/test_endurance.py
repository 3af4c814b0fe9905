"""What must not stop a server, hide a loss, or hold its memory: strategies that fail, clients that stall, journals that
changed."""

import io
import json
import sqlite3
import threading

import grpc
import pytest

from polytempo.core.errors import UserError
from polytempo.core.orders import Send
from polytempo.serve.journal.continuing import Consent
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.replay import replay
from polytempo.serve.server.network import sessions as server_module
from polytempo.serve.server.status import read_status
from polytempo.strategies import Strategy
from polytempo_client.logs import log_to
from polytempo_client.protocol.framing import SESSION
from polytempo_client.protocol.wire_pb2 import Frame, Head, Hello, Pull
from polytempo_client.session.credentials import read_token
from support.serving import hosted, restarted, running, some_events, tiny_settings, until


class FailsToSayGoodbye(Strategy):
    def left(self, client, now):
        raise ZeroDivisionError("left")


class HasNoModel(Strategy):
    def model_for(self, client):
        raise ZeroDivisionError("no model")


class RefreshesOthersWithoutAModel(HasNoModel):
    """When client 1 pulls, client 0 is sent a model, and client 1 none."""

    def pulled(self, client, now):
        yield Send(0, self.model.weights + 1, 1)


def test_the_orders_of_an_event_go_out_even_if_the_strategy_has_no_reply(tmp_path):
    with hosted(tmp_path, "test_endurance:RefreshesOthersWithoutAModel") as served:
        served.hello(0)
        served.ready(0)
        served.hello(1)
        assert "no reply" in served.pull(1).refusal.reason
        assert served.sessions[0].kinds()[-1] == "model"


def test_a_strategy_that_fails_when_a_client_has_left_does_not_stop_the_server(tmp_path):
    with hosted(tmp_path, "test_endurance:FailsToSayGoodbye") as served:
        served.hello(0)
        served.disconnect(0)
        before = served.digest()
        served.at(61.0)
        assert served.digest() == before
        served.reconnect(0)
        assert served.ready(0).WhichOneof("kind") == "task"


def test_a_strategy_that_has_no_model_to_give_refuses_the_pull_alone(tmp_path):
    with hosted(tmp_path, "test_endurance:HasNoModel") as served:
        served.hello(0)
        assert "no reply" in served.pull(0).refusal.reason
        assert served.ready(0).WhichOneof("kind") == "task"


def test_a_database_that_has_lost_its_end_is_an_error_and_the_lost_tasks_are_not_given_again(tmp_path):
    with hosted(tmp_path) as served:
        some_events(served)
        copy = served.copied(tmp_path / "copy") / "journal"
    said = json.loads((copy / "status.json").read_text()) if (copy / "status.json").exists() else {"journal": {}}
    said["journal"]["events"] = 10_000
    (copy / "status.json").write_text(json.dumps(said))
    settings = tiny_settings(tmp_path)
    with pytest.raises(UserError, match="has lost its end"):
        open_service(copy, settings)
    opened = open_service(copy, settings, Consent(lose_tail=True))
    assert opened.service.number > 1_000_000
    opened.journal.close()


def test_a_setting_that_did_not_exist_when_the_journal_began_has_its_default(tmp_path):
    with hosted(tmp_path) as served:
        some_events(served)
        journal, digest = served.host.journal, served.digest()
        older = {name: value for name, value in journal.about["settings"].items() if name != "weight_decay"}
        journal.describe(journal.about | {"settings": older})
    opened = open_service(tmp_path / "journal", tiny_settings(tmp_path))
    assert opened.service.digest() == digest
    opened.journal.describe(journal.about | {"settings": older | {"no_more": 1}})
    opened.journal.close()
    with pytest.raises(UserError, match="no_more"):
        replay(tmp_path / "journal")


def test_an_idle_server_grows_older(tmp_path):
    with hosted(tmp_path) as served:
        served.hello(0)
        served.host._status._next = 0.0
        served.at(30.0)
        assert read_status(tmp_path / "journal")["uptime"] == 30.0


def test_a_client_that_reads_nothing_is_counted_out_and_cannot_pile_up_sessions(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "LINGER", 0.1)
    ended = threading.Event()
    with running(tmp_path) as server, grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        token = read_token(tmp_path / "client-0.token")
        open_session = channel.stream_stream(SESSION, Frame.SerializeToString, Frame.FromString)

        def stalled():
            yield Frame(head=Head(request=1, hello=Hello()))
            yield Frame(head=Head(request=2, pull=Pull()))
            ended.wait(30)

        def session():
            return open_session(stalled(), metadata=(("authorization", f"Bearer {token}"),))

        calls = [session() for _ in range(server_module.SESSIONS + 3)]
        codes = []
        for call in reversed(calls):
            try:
                next(iter(call))
            except grpc.RpcError as error:
                codes.append(error.code())
        until(lambda: server.server._sessions[0] == 1)  # the newest replaced the others
        ended.set()
    assert all(code == grpc.StatusCode.RESOURCE_EXHAUSTED for code in codes)


def test_two_sessions_of_one_client_are_told_of_each_other(tmp_path):
    with hosted(tmp_path) as served:
        served.hello(0)
        first = served.sessions[0]
        served.reconnect(0)
        assert first.sent[-1][0].refusal.replaced


def test_a_pulled_model_has_its_branchs_version(tmp_path):
    with running(tmp_path) as server, server.client(0) as client:
        assert client.pull(10).version == 0
        client.run(lambda task: (task.tensors, 1), updates=2)
        assert client.pull(10).version == 2


class HasNoCluster(Strategy):
    def cluster_of(self, client):
        raise ZeroDivisionError("no cluster")


def test_a_status_that_cannot_be_told_stops_nothing(tmp_path):
    with hosted(tmp_path, "test_endurance:HasNoCluster") as served:
        served.hello(0)
        served.host._status._next = 0.0
        assert served.ready(0).WhichOneof("kind") == "task"


def test_a_repeat_to_which_the_strategy_has_no_reply_is_refused_alone(tmp_path):
    with hosted(tmp_path, "test_endurance:HasNoModel") as served:
        served.hello(0)
        served.ready(0)
        head, body = served.pushed(0, ready=False)
        served.ask(0, head, body)
        assert "no reply" in served.ask(0, head, body).refusal.reason
        assert served.ready(0).WhichOneof("kind") == "task"


def test_an_event_that_could_not_be_marked_void_on_a_full_disk_is_marked_with_the_next_ones(tmp_path, monkeypatch):
    with hosted(tmp_path, "support.serving:Brittle") as served:
        served.hello(0)
        served.ready(0)
        journal = served.host.journal
        with monkeypatch.context() as full:
            full.setattr(journal.marks, "write", lambda _: full_disk() if journal.marks.void else None)
            assert "could not take it" in served.push(0, answers={"break": 1}).refusal.reason
        assert journal.marks.void
        served.reconnect(0)
        served.push(0)
        served.push(0)
        assert not journal.marks.void
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


def full_disk():
    raise sqlite3.OperationalError("database or disk is full")


def test_logs_are_json_lines_with_what_happened(tmp_path):
    stream = io.StringIO()
    log_to(stream, "info")
    try:
        with hosted(tmp_path) as served:
            served.hello(0)
            served.ready(0)
            served.push(0)
            served.push(0, samples=0)
    finally:
        log_to(level="error")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["joined", "ready", "updated", "refused"]
    assert {"client": 0, "task": 1, "staleness": 0, "level": "info"}.items() <= lines[2].items()
    assert "samples" in lines[3]["reason"]
