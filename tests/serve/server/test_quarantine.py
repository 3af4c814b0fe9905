"""A client that keeps sending what has to be refused is ignored until it is released."""

import fcntl
import logging
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polytempo.core.errors import UserError
from polytempo.serve.access.enrolment import make_code
from polytempo.serve.access.live import Access, release
from polytempo.serve.access.roster import LONGEST_REASON, Roster
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.paths import ACCESS
from polytempo.serve.server.operations import QuarantineRule
from polytempo.serve.server.refusals import RefusalTracker
from polytempo.serve.server.status import read_status
from polytempo.serve.storage import documents
from polytempo_client.protocol.wire_pb2 import Frame
from polytempo_client.session.enrolment import enrol_client
from support.serving import Hosted, Running, hosted, nudge, push_unchecked, refused, running, until
from support.strangers import stranger

pytestmark = pytest.mark.usefixtures("short_pauses")

RULE = {"refusals": 3, "seconds": 600.0}


# The rule.


def test_so_many_refusals_within_so_many_seconds_are_too_much() -> None:
    tracker, rule = RefusalTracker(), QuarantineRule(refusals=3, seconds=10.0)
    said = [tracker.count_refusal(0, at, rule) for at in (0.0, 5.0, 9.9)]
    assert said == [None, None, "3 refusals within 10 s"]


def test_refusals_spread_over_time_are_not_too_much_as_long_as_something_is_taken() -> None:
    tracker, rule = RefusalTracker(), QuarantineRule(refusals=3, seconds=10.0)
    for at in np.arange(0.0, 1000.0, 5.0):
        assert tracker.count_refusal(0, at, rule) is None
        tracker.end_row(0)
    assert tracker.refusals[0] == 200
    assert tracker.count_refusal(0, 996.0, rule)


def test_nothing_but_refusals_is_too_much_however_slowly_they_come() -> None:
    tracker, rule = RefusalTracker(), QuarantineRule(refusals=3, seconds=10.0)
    assert [tracker.count_refusal(0, at, rule) for at in (0.0, 3600.0, 7200.0)] == [None, None, "3 refusals in a row"]


def test_each_client_is_judged_by_itself_and_anew_after_a_release() -> None:
    tracker, rule = RefusalTracker(), QuarantineRule(refusals=2, seconds=10.0)
    assert [bool(tracker.count_refusal(client, 0.0, rule)) for client in (0, 1, 0)] == [False, False, True]
    assert not tracker.count_refusal(0, 1.0, rule)


def test_a_rule_that_was_made_stricter_counts_what_was_before() -> None:
    tracker = RefusalTracker()
    for at in (0.0, 1.0, 2.0):
        assert not tracker.count_refusal(0, at, QuarantineRule())
    assert tracker.count_refusal(0, 3.0, QuarantineRule(refusals=4, seconds=10.0))


# The host.


def pushes_nan(served: Hosted, client: int) -> Any:
    return served.push(client, weights=torch.full((6,), torch.nan))


def with_tasks(served: Hosted, clients: int = 2) -> None:
    for client in range(clients):
        served.hello(client)
        served.ready(client)


def test_a_client_that_keeps_pushing_nan_is_quarantined_with_the_reason(tmp_path: Path) -> None:
    with hosted(tmp_path, quarantine=RULE) as served:
        with_tasks(served)
        before = served.digest()
        for _ in range(3):
            assert refused(pushes_nan(served, 0), "NaN or Inf")
        served.shared.access.settle(30)
        reason = Roster.read(tmp_path / ACCESS).quarantined[0].reason
        assert reason.startswith("3 refusals within 600 s, the last: the update holds NaN or Inf")
        assert refused(served.push(0), "in quarantine since")
        assert refused(served.hello(0), "in quarantine since")
        assert served.digest() == before
        assert served.push(1).WhichOneof("kind") == "task"
        assert list(served.shared.access.roster.quarantined) == [0]


def test_an_honest_client_with_a_few_refusals_now_and_then_is_heard(tmp_path: Path) -> None:
    with hosted(tmp_path, quarantine=RULE) as served:
        with_tasks(served)
        for i in range(20):
            served.clock.now += 310.0
            assert refused(pushes_nan(served, 0), "NaN or Inf")
            assert served.push(0).WhichOneof("kind") == "task", i
        assert served.shared.access.roster.quarantined == {}


def test_a_push_that_crosses_a_withdrawal_is_not_held_against_the_client(tmp_path: Path) -> None:
    with hosted(tmp_path, quarantine=RULE) as served:
        with_tasks(served)
        for _ in range(5):
            on_its_way = served.pushed(0)
            served.disconnect(0)
            served.clock.now += 100.0
            served.host.handle([])
            served.reconnect(0)
            assert refused(served.ask(0, *on_its_way), "is not yours, or it was withdrawn")
            served.ready(0)
        assert served.shared.access.roster.quarantined == {}


def test_tasks_that_never_were_are_held_against_the_client(tmp_path: Path) -> None:
    with hosted(tmp_path, quarantine=RULE) as served:
        with_tasks(served)
        for _ in range(3):
            assert refused(served.push(0, task=999), "is not yours, or it was withdrawn")
        assert "task 999 is not yours" in served.shared.access.roster.quarantined[0].reason


@pytest.mark.parametrize("given", [{"by": 1e4}, {"samples": 0}, {"samples": 10**9 + 1}, {"steps": 5}])
def test_updates_that_an_honest_client_may_send_by_mistake_are_refused_and_not_held_against_it(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    with hosted(tmp_path, quarantine=RULE) as served:
        with_tasks(served)
        for _ in range(30):
            assert refused(served.push(0, **given), "Update rejected")
        assert served.shared.access.roster.quarantined == {}
        assert served.push(0).WhichOneof("kind") == "task"
        assert served.host.refusals.refusals[0] == 0


def test_what_was_refused_of_a_client_is_told_in_its_line(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        with_tasks(served)
        pushes_nan(served, 1)
        served.host.write_status(stopping=True)
        assert [row["refused"] for row in read_status(tmp_path / "journal")["clients"]] == [0, 1]


def test_a_method_that_fails_takes_nobody_to_quarantine(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Brittle", quarantine=RULE) as served:
        with_tasks(served)
        for _ in range(5):
            reply = served.push(0, answers={"break": 1})
            assert refused(reply, "ZeroDivisionError")
            assert reply.refusal.failed
            served.reconnect(0)
        assert served.shared.access.roster.quarantined == {}
        assert served.host.refusals.refusals[0] == 0
        assert served.push(0).WhichOneof("kind") == "task"


def test_a_quarantine_that_cannot_be_written_holds_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def disk_full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with hosted(tmp_path, quarantine=RULE) as served:
        with_tasks(served)
        with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, "polytempo"):
            patch.setattr(documents, "write_shared", disk_full)
            for _ in range(3):
                pushes_nan(served, 0)
            served.shared.access.settle(30)
        errors = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
        assert errors == ["quarantined", "quarantine not kept"]
        assert not (tmp_path / ACCESS).exists()
        assert refused(served.push(0), "in quarantine")


def test_a_quarantine_that_could_not_be_written_is_written_when_that_is_possible_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    make_tokens(tmp_path, 1)
    access = Access(tmp_path, seconds=lambda: now[0])
    with monkeypatch.context() as patch:
        patch.setattr(documents, "LOCK_SECONDS", 0.0)
        with (tmp_path / f".{ACCESS}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            access.quarantine(0, "rubbish")
            access.settle(30)
    assert Roster.read(tmp_path / ACCESS).quarantined == {}
    now[0] = 6.0
    access.refresh()
    access.settle(30)
    assert Roster.read(tmp_path / ACCESS).quarantined[0].reason == "rubbish"
    release(tmp_path, 0)
    access.refresh()
    assert access.roster.quarantined == {}


def test_a_refusal_repeats_no_more_of_a_clients_words_than_somebody_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hosted(tmp_path) as served, caplog.at_level(logging.INFO, "polytempo"):
        with_tasks(served)
        fitting = {"bias": np.zeros(2, np.float32), "weight": np.zeros((2, 2), np.float32)}
        answer = served.push(0, tensors={**fitting, "x" * 1_000_000: np.zeros(1, np.float32)})
        assert len(answer.refusal.reason) == LONGEST_REASON
    (told,) = [record for record in caplog.records if record.getMessage() == "refused"]
    assert len(vars(told)["fields"]["reason"]) == LONGEST_REASON


def test_the_reason_of_a_quarantine_is_not_longer_than_an_operator_reads(tmp_path: Path) -> None:
    make_tokens(tmp_path, 1)
    access = Access(tmp_path)
    access.quarantine(0, "x" * 100_000)
    access.settle(30)
    assert len(Roster.read(tmp_path / ACCESS).quarantined[0].reason) == LONGEST_REASON
    assert stat.S_IMODE((tmp_path / ACCESS).stat().st_mode) == 0o600


def test_whoever_holds_the_files_lock_does_not_hold_the_service(tmp_path: Path) -> None:
    make_tokens(tmp_path, 1)
    access = Access(tmp_path)
    with (tmp_path / f".{ACCESS}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        access.quarantine(0, "rubbish")
        assert access.roster.quarantined[0].reason == "rubbish"
        (tmp_path / ACCESS).write_text((tmp_path / ACCESS).read_text() + " ")
        access.refresh()  # somebody else's change does not undo it
        assert 0 in access.roster.quarantined
    access.settle(30)
    assert 0 in Roster.read(tmp_path / ACCESS).quarantined


# The server.


def put_in_quarantine(server: Running) -> None:
    """Push NaN until the server has had enough."""
    with server.client(0) as client:
        task, said = client.task(30), ""
        while "in quarantine since" not in said:
            with pytest.raises(UserError) as refusal:
                push_unchecked(client, task, nudge(task, float("nan")))
            said = str(refusal.value)
        until(lambda: 0 not in server.host.presence.sessions)
        server.shared.access.settle(30)


def test_the_sessions_of_a_quarantined_client_end_and_others_go_on(tmp_path: Path) -> None:
    with running(tmp_path, quarantine=RULE, participation="k:1") as server:
        with server.client(1) as other, stranger(server.address, server.token(0)):
            put_in_quarantine(server)
            until(lambda: [session.client for session in server.server._open] == [1])
            other.run(lambda task: (nudge(task), 5), updates=1)
        assert not server.host.service.is_member(0)
        assert server.host.service.updates == 1


def test_a_quarantined_client_is_refused_with_the_reason_also_after_a_restart_and_does_not_try_for_ever(
    tmp_path: Path,
) -> None:
    with running(tmp_path, quarantine=RULE) as server:
        put_in_quarantine(server)
    with running(tmp_path) as server, server.client(0) as client:
        with pytest.raises(UserError, match=r"cannot be joined: .* in quarantine since .*NaN or Inf"):
            client.wait_for_welcome(30)
        client._connection._thread.join(20)
        assert not client._connection._thread.is_alive()
        assert server.shared.meters.refusals["quarantined"] == 1


def test_the_status_shows_who_is_in_quarantine_and_why(tmp_path: Path) -> None:
    with running(tmp_path, quarantine=RULE) as server, server.client(1) as other:
        other.task(30)
        put_in_quarantine(server)
    rows = {row["client"]: row for row in read_status(tmp_path / "journal")["clients"]}
    assert "NaN or Inf" in rows[0]["quarantined"]
    assert rows[1]["quarantined"] is None


def test_whoever_is_released_is_heard_again_at_once(tmp_path: Path) -> None:
    with running(tmp_path, quarantine=RULE) as server:
        put_in_quarantine(server)
        release(tmp_path, 0)
        with server.client(0) as client:
            client.run(lambda task: (nudge(task), 5), updates=1)
        assert server.host.service.members[0].updates == 1
    with pytest.raises(UserError, match="not in quarantine"):
        release(tmp_path, 0)


def test_a_new_token_does_not_lead_out_of_quarantine(tmp_path: Path) -> None:
    with running(tmp_path, quarantine=RULE) as server:
        put_in_quarantine(server)
        out = tmp_path / "new.token"
        enrol_client(server.address, make_code(tmp_path, 0), out, insecure=True)
        with server.client_with(str(out)) as client, pytest.raises(UserError, match="in quarantine"):
            client.wait_for_welcome(30)


def test_garbled_messages_count_too(tmp_path: Path) -> None:
    with running(tmp_path, quarantine=RULE) as server:
        for _ in range(3):
            with stranger(server.address, server.token(0)) as garbling:
                garbling.send(Frame(data=b"rubbish"))
                heard, _ = garbling.end()
                assert "does not begin with a head" in heard[-1].refusal.reason
        until(lambda: 0 in server.shared.access.roster.quarantined)
