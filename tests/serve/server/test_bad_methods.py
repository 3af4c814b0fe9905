"""A method that fails, hangs or asks for the end of the process does not end the service."""

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.serve.journal import snapshots
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import open_service
from polytempo.serve.process import watchdog as watchdog_module
from polytempo.serve.process.ending import StuckError
from polytempo.serve.process.watchdog import Watchdog
from polytempo.serve.server.operations import Operations, WatchdogRule
from polytempo.serve.storage.errors import JournalError
from support import bad_methods
from support.serving import Hosted, hosted, join_all, refused, restarted, until

BAD = "support.bad_methods:Bad"
UNUSABLE = "support.bad_methods:Unusable"


def test_a_timer_that_raises_is_rolled_back_and_never_fires_again(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD, patience=1e6) as served:
        join_all(served)
        served.hello(9)
        served.push(0)
        before = served.digest()
        served.at(11.0)
        assert served.digest() != before, "the timer is gone"
        assert served.host.service.next_timer() == 20.0
        assert served.shared.meters.strategy_failures == 1
        assert all(session.ended for session in served.sessions.values())
        served.at(21.0)
        assert served.host.service.timers == []
        assert served.host.service.strategy.model.version == 2, "the next timer fired"
        served.reconnect(1)
        assert served.push(1).WhichOneof("kind") == "task"
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


@pytest.mark.parametrize("harm", ["exit", "hoard", "interrupt"])
def test_whatever_a_method_raises_is_rolled_back(harm: str, tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        join_all(served)
        before = served.digest()
        assert refused(served.push(0, answers={"harm": harm}), "the strategy could not take it")
        assert served.digest() == before
        served.reconnect(0)
        assert served.push(0).WhichOneof("kind") == "task"


def test_what_was_on_its_way_when_a_timer_failed_is_to_be_sent_again_and_is_no_clients_refusal(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD, patience=1e6) as served:
        join_all(served)
        served.hello(9)
        on_its_way = served.pushed(0)
        served.at(11.0)
        reply = served.ask(0, *on_its_way)
        assert reply.refusal.again
        assert reply.refusal.failed
        assert served.shared.meters.refusals == {"strategy": 1}
        served.host.write_status(stopping=True)
        assert "refused 0" in CliRunner().invoke(app, ["status", "--dir", str(tmp_path)]).stdout
        served.disconnect(0)
        assert refused(served.ask(0, *on_its_way), "say hello first"), "nothing of a session that is gone is remembered"
        served.reconnect(0)
        assert served.push(0).WhichOneof("kind") == "task"


def test_an_update_whose_order_cannot_be_sent_is_rolled_back(tmp_path: Path) -> None:
    with hosted(tmp_path, UNUSABLE) as served:
        join_all(served)
        before = served.digest()
        assert refused(served.push(0, answers={"harm": "gradient"}), "the strategy could not take it")
        assert served.digest() == before
        served.reconnect(0)
        assert served.push(0).WhichOneof("kind") == "task"
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


def test_a_state_that_cannot_be_packed_costs_its_snapshots_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_EVENTS", 3)
    with hosted(tmp_path, "support.bad_methods:Unpackable") as served:
        join_all(served)
        newest = served.host.journal.newest_snapshot()
        for client in (0, 1, 0, 1):
            assert served.push(client).WhichOneof("kind") == "task"
        assert served.host.journal.newest_snapshot() == newest
        assert "snapshot failed" in caplog.messages
        again = served.after_crash(tmp_path / "crash")
        again.host.start()
        again.host.stop()
        assert again.host.error is None
        assert again.host.service.updates == 4


def test_a_host_that_ends_for_an_error_leaves_a_snapshot_of_the_last_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("not the method's fault")

    with hosted(tmp_path, BAD) as served:
        join_all(served)
        served.push(0)
        expected = served.digest()
        monkeypatch.setattr(served.host, "_fire_timers", fail)
        served.host.start()
        assert served.host.wait_for_end(20.0)
        assert isinstance(served.host.error, RuntimeError)
    opened = open_service(served.directory, served.settings)
    assert opened.journal.newest_snapshot() == opened.journal.last
    assert opened.service.digest() == expected
    opened.journal.close()


def test_a_method_that_sets_timers_for_now_starves_nobody(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.bad_methods:Restless") as served:
        served.hello(0)
        before = served.host.service.strategy.fired_times
        served.at(1.0)
        assert served.host.service.strategy.fired_times == before + 1
        assert served.ready(0).WhichOneof("kind") == "task"


def test_a_departure_that_fails_is_not_tried_again_every_second(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.bad_methods:Clinging", task_seconds=10.0) as served:
        join_all(served, 1)
        served.at(11.0)
        assert served.shared.meters.strategy_failures == 1
        served.reconnect(0, task=served.task(0))
        served.at(13.0)
        assert served.shared.meters.strategy_failures == 1
        assert not served.sessions[0].ended


def test_the_departure_of_an_absent_client_that_fails_is_tried_once(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.bad_methods:Clinging", patience=60.0) as served:
        join_all(served)
        served.disconnect(0)
        served.at(61.0)
        assert served.shared.meters.strategy_failures == 1
        served.reconnect(1)
        for now in (122.0, 183.0, 244.0):
            served.at(now)
            assert not served.sessions[1].ended
        assert served.shared.meters.strategy_failures == 1
        assert list(served.host.presence.deadlines()) == [], "nobody is waited for, so the host does not spin"


def test_a_departure_is_tried_again_when_the_client_has_done_something_since(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.bad_methods:Clinging", patience=60.0) as served:
        join_all(served, 1)
        served.disconnect(0)
        served.at(61.0)
        served.reconnect(0)
        served.push(0)
        served.disconnect(0)
        served.at(122.0)
        assert served.shared.meters.strategy_failures == 2


def test_a_departure_that_could_not_be_written_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object) -> None:
        raise JournalError("the disk is full")

    with hosted(tmp_path, task_seconds=10.0) as served:
        join_all(served, 1)
        with monkeypatch.context() as full:
            full.setattr(served.host.journal, "append", full_disk)
            served.at(11.0)
        assert served.host.service.is_member(0)
        served.at(13.0)
        assert not served.host.service.is_member(0)


def test_a_timer_whose_order_has_no_message_does_not_end_the_host(tmp_path: Path) -> None:
    with hosted(tmp_path, UNUSABLE, patience=1e6) as served:
        join_all(served)
        served.hello(9)
        version = served.host.service.strategy.model.version
        served.at(11.0)
        assert served.host.service.strategy.model.version == version + 1
        assert served.push(1).WhichOneof("kind") == "task"


def test_a_departure_whose_order_has_no_message_does_not_end_the_host(tmp_path: Path) -> None:
    with hosted(tmp_path, UNUSABLE, patience=60.0) as served:
        join_all(served, 3)
        served.disconnect(1)
        served.at(61.0)
        assert not served.host.service.is_member(1)
        assert served.push(2).WhichOneof("kind") == "task"


# A method that hangs.


def stuck_after(seconds: float) -> Operations:
    """Sooner than service.toml may say, so that tests need not wait."""
    return Operations(watchdog=WatchdogRule.model_construct(event_seconds=seconds, stop_seconds=60.0))


@pytest.fixture
def hanging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Hosted]:
    """A host whose method waits in event 6, after one good update."""
    caplog.set_level(logging.INFO, "polytempo")
    bad_methods.RELEASED.clear()
    with hosted(tmp_path, BAD, operations=stuck_after(0.05)) as served:
        join_all(served)
        served.push(0)
        served.host.start()
        served.host.submit(served.request(1, *served.pushed(1, answers={"harm": "wait"})))
        until(lambda: served.host.journal.applying.number and served.host.is_stuck())
        yield served
        bad_methods.RELEASED.set()
        assert served.host.wait_for_end(60.0)


def test_a_host_that_waits_for_something_to_do_is_not_stuck(tmp_path: Path) -> None:
    with hosted(tmp_path, operations=stuck_after(1e-9)) as served:
        served.host.start()
        until(lambda: served.host.health().is_healthy)
        assert served.host.health().age > 1e-9, "the age of the last loop is told all the same"
        served.host.stop()


def test_a_method_that_hangs_fails_the_health_check_and_its_stack_is_logged_once(
    hanging: Hosted, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_twice() -> None:
        watchdog = Watchdog(hanging.host)
        watchdog.look()
        watchdog.look()

    told: list[str] = []
    monkeypatch.setattr(watchdog_module, "tell_supervisor", told.append)

    health = hanging.host.health()
    assert not health.is_healthy
    assert health.age >= 0.05
    asyncio.run(look_twice())
    (stuck,) = [record for record in caplog.records if record.getMessage() == "stuck"]
    assert stuck.fields["number"] == 6  # type: ignore[attr-defined]
    assert stuck.fields["description"] == "event 6 (update of client 1)"  # type: ignore[attr-defined]
    assert "RELEASED.wait()" in stuck.fields["stack"]  # type: ignore[attr-defined]
    assert told == [], "the supervisor hears nothing, and restarts it"
    hanging.host.begin_stop()


def test_a_stop_does_not_wait_for_a_method_that_hangs_and_keeps_the_state_before(
    hanging: Hosted, tmp_path: Path
) -> None:
    expected = restarted(_until_event(hanging, 5, tmp_path / "before"), hanging.settings)
    with pytest.raises(StuckError, match=r"event 6 \(update of client 1\)"):
        asyncio.run(Watchdog(hanging.host).stop(time.monotonic() + 60.0))
    journal = Journal(hanging.directory)
    assert journal.newest_snapshot() == 5
    journal.close()
    assert restarted(_until_event(hanging, 5, tmp_path / "after"), hanging.settings) == expected


def _until_event(served: Hosted, number: int, to: Path) -> Path:
    """A copy of the journal, without what comes after this event."""
    served.copied(to)
    journal = Journal(to / "journal")
    journal.store._database.execute("DELETE FROM events WHERE number > ?", (number,))
    journal.close()
    (to / "journal" / "status.json").unlink(missing_ok=True)
    return to


# Tasks that are never answered.


def test_a_round_goes_on_without_a_client_that_is_connected_and_silent(tmp_path: Path) -> None:
    with hosted(tmp_path, "fedavg", task_seconds=100.0) as served:
        join_all(served, 3)
        served.push(0)  # the first round was its own; now all three are in the next
        served.push(0)
        served.push(1)
        rounds = served.host.service.strategy.model.version
        served.at(99.0)
        assert served.host.service.strategy.model.version == rounds
        served.at(101.0)
        assert served.host.service.strategy.model.version == rounds + 1
        assert not served.host.service.is_member(2)
        assert served.sessions[2].sent[-1][0].refusal.again
        assert served.sessions[2].ended
        assert served.task(0)
        assert served.task(1)
        assert restarted(served.copied(tmp_path / "crash"), served.settings) == served.digest()


def test_a_round_is_not_held_up_by_a_client_that_joined_and_never_asks_for_work(tmp_path: Path) -> None:
    with hosted(tmp_path, "fedavg", task_seconds=100.0) as served:
        served.hello(1)
        served.hello(0)
        served.ready(0)
        assert not served.task(0)
        served.at(101.0)
        assert served.task(0)
        assert served.sessions[1].ended


def test_a_client_that_answers_too_late_is_told_that_its_task_is_void_and_not_blamed(tmp_path: Path) -> None:
    with hosted(tmp_path, task_seconds=100.0) as served:
        join_all(served, 1)
        task = served.task(0)
        head, body = served.pushed(0)
        served.at(101.0)
        served.reconnect(0, task=task)
        reply = served.ask(0, head, body)
        assert reply.refusal.void
        assert served.host.refusals.refusals[0] == 0
        assert served.ready(0).WhichOneof("kind") == "task"


def test_without_a_deadline_a_task_stays_open(tmp_path: Path) -> None:
    with hosted(tmp_path, task_seconds=None) as served:
        join_all(served, 1)
        served.at(1e9)
        assert served.task(0)
