"""Clients that come and go: who returns in time goes on, who is away for too long has left."""

from pathlib import Path
from typing import Any

import pytest

from polytempo.core import flight as flights
from polytempo.core.flight import FEWEST_SENDS
from polytempo.core.orders import Send
from polytempo.serve.server.requests import Request
from polytempo.serve.storage.errors import JournalError
from polytempo_client.protocol.wire_pb2 import Head
from support.serving import hosted, join_all, refused


def test_a_client_that_returns_in_time_goes_on_with_its_task(tmp_path: Path) -> None:
    with hosted(tmp_path, patience=10.0) as served:
        join_all(served)
        task = served.task(0)
        served.disconnect(0)
        served.at(9.0)
        assert served.reconnect(0, task=task, heeded=task).welcome.task == task
        served.at(30.0)
        assert served.push(0).WhichOneof("kind") == "task"


def test_a_client_that_is_away_for_too_long_has_left_with_its_task(tmp_path: Path) -> None:
    with hosted(tmp_path, patience=10.0) as served:
        join_all(served)
        push = served.pushed(0)
        served.disconnect(0)
        served.at(9.9)
        assert served.host.service.is_member(0)
        served.at(10.0)
        assert not served.host.service.is_member(0)
        assert served.reconnect(0, task=push[0].push.task).welcome.task == 0
        assert refused(served.ask(0, *push), "withdrawn")
        assert served.host.service.is_member(1)


def test_the_end_of_an_old_connection_does_not_count_when_a_new_one_is_there(tmp_path: Path) -> None:
    with hosted(tmp_path, patience=10.0) as served:
        join_all(served)
        old = served.sessions[0]
        served.reconnect(0)
        assert old.ended
        served.host.handle([Request(old, "gone", Head(), bytearray())])
        served.at(50.0)
        assert served.host.service.is_member(0)


def test_a_client_that_returns_is_sent_the_last_refresh_that_it_missed_and_nothing_twice(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Refresher") as served:
        join_all(served, 3)
        task = served.task(0)
        served.push(1)
        heard = served.sessions[0].sent[-1][0].model
        assert heard.task == task
        served.disconnect(0)
        for _ in range(3):
            served.push(2)
        served.reconnect(0, task=task, heeded=heard.number)
        sent = [head.model.number for head, _ in served.sessions[0].sent if head.HasField("model")]
        assert sent == [served.host.service.flights[0].sends[-1][0]]
        served.reconnect(0, task=task, heeded=sent[-1])
        assert not any(head.HasField("model") for head, _ in served.sessions[0].sent)
        assert served.push(0).WhichOneof("kind") == "task"


def test_one_refresh_does_what_those_that_were_missed_would_have_done(tmp_path: Path) -> None:
    """Progress that the first of them throws away stays thrown away."""
    with hosted(tmp_path) as served:
        join_all(served, 1)
        service, flight = served.host.service, served.host.service.flights[0]
        models = [flight.order.weights + k for k in range(3)]
        for rebase in ([True, True, True], [False, True, True], [True, False, True]):
            flight.sends = [(100 + k, Send(0, models[k], k, rebase[k])) for k in range(3)]
            (again,) = service.missed(0, 99)
            assert (again.number, again.order) == (102, Send(0, models[2], 2, all(rebase)))
            assert service.missed(0, 101)[0].order == flight.sends[2][1]


def test_a_client_that_never_answers_keeps_only_the_last_models_that_it_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, "support.serving:Refresher") as served:
        join_all(served, 2)
        first = served.task(0)
        monkeypatch.setattr(flights, "MOST_SENDS", FEWEST_SENDS)
        for _ in range(FEWEST_SENDS + 5):
            served.push(1)
        flight = served.host.service.flights[0]
        assert len(flight.sends) == FEWEST_SENDS
        answer = served.push(0, base=flight.forgotten)
        assert refused(answer, "too many others were sent")
        assert answer.refusal.void
        assert served.host.refusals.refusals == {}  # which is nobody's fault, once
        assert refused(served.push(0, base=flight.forgotten), "too many others were sent")
        assert served.host.refusals.refusals == {0: 1}
        assert served.push(0, base=first).WhichOneof("kind") == "task"


def test_sessions_that_take_over_again_and_again_have_a_token_in_two_places(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served, 2)
        for at in (0.0, 300.0, 601.0):
            served.at(at)
            served.reconnect(0)
        refusals = served.shared.meters.refusals
        assert refusals == {"replaced": 3}  # a network that breaks now and then
        served.at(650.0)
        served.reconnect(1)
        served.reconnect(0)
        assert refusals == {"replaced": 4, "contested": 1}


def test_a_journal_that_cannot_be_written_is_told_and_no_more_when_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Any) -> None:
        raise JournalError("The journal cannot be written: No space left on device.")

    with hosted(tmp_path) as served:
        join_all(served, 1)
        with monkeypatch.context() as patch:
            patch.setattr(served.host.journal, "append", full)
            assert served.push(0).refusal.again
            served.host.write_status(stopping=True)
            assert served.host.status()["journal_failing"]
            assert not served.host.health().is_healthy
        served.host.handle([])  # it is tried, though nobody comes
        assert served.host.health().is_healthy is served.host._thread.is_alive()
        assert not served.shared.meters.journal_failing
        assert served.push(0).WhichOneof("kind") == "task"


def test_a_client_that_was_told_to_report_while_it_was_away_is_told_when_it_returns(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Impatient") as served:
        join_all(served)
        task = served.task(0)
        served.disconnect(0)
        served.at(7.5)
        assert served.sessions[1].kinds()[-1] == "report"
        served.reconnect(0, task=task, heeded=task)
        assert served.sessions[0].sent[-1][0].report.task == task


def test_after_a_restart_clients_have_the_whole_patience_to_return(tmp_path: Path) -> None:
    with hosted(tmp_path, patience=10.0) as served:
        join_all(served)
        served.at(100.0)
        again = served.after_crash(tmp_path / "crash")
        again.at(9.0)
        assert again.host.service.is_member(0)
        again.hello(0)
        again.at(11.0)
        assert again.host.service.is_member(0)
        assert not again.host.service.is_member(1)
        again.close()
