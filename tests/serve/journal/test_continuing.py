"""What an operator allows a start to do: leave an event out, replay with a mended method, lose the tail."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from polytempo.core.errors import UserError
from polytempo.core.state import digest
from polytempo.serve.journal import opening, recovery
from polytempo.serve.journal.applying import Applying
from polytempo.serve.journal.continuing import RENUMBERED_BY, Consent
from polytempo.serve.journal.failures import DependentError, UnreplayableError
from polytempo.serve.journal.opening import open_service
from polytempo.serve.paths import APPLYING
from polytempo.serve.process.ending import StuckError
from polytempo.serve.process.watchdog import opened_in_time
from polytempo.serve.state.service import Service
from polytempo.serve.storage.errors import JournalError
from support import bad_methods
from support.damage import damage_last_snapshot, flip
from support.serving import Hosted, copied, hosted, join_all, refused, restarted, some_events, without

pytestmark = pytest.mark.usefixtures("store")

BAD = "support.bad_methods:Bad"


def last_words(caplog: pytest.LogCaptureFixture, event: str) -> dict[str, object]:
    return [record.fields for record in caplog.records if record.getMessage() == event][-1]  # type: ignore[attr-defined]


def with_deadly_last_event(served: Hosted, to: Path) -> Path:
    """A crash in the middle of event 6, the update of client 1."""
    join_all(served)
    served.push(0)
    head, body = served.pushed(1, answers={"harm": "wait"})
    event = served.host.handlers.decide(served.request(1, head, body), served.host.service, served.host.clock())
    served.host.journal.append([event])  # type: ignore[list-item]
    served.host.journal.applying.begin(6)
    served.copied(to)
    served.host.journal.applying.end()
    return to


# An event that ends the process.


def test_the_second_death_in_one_event_is_named_and_not_repeated(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_deadly_last_event(served, tmp_path / "crash")
        before = served.digest()
        marker = Applying(directory / "journal" / APPLYING)  # the first start replays the event, and dies of it
        marker.begin(6)
        marker.close()
        with pytest.raises(JournalError, match=r"Event 6 \(update of client 1\).*--leave-out 6"):
            open_service(directory / "journal", served.settings)
        assert restarted(directory, served.settings, without(6)) != before, "orders are numbered anew"
        opened = open_service(directory / "journal", served.settings)
        assert opened.journal.about["left_out"][0]["description"] == "update of client 1"
        assert opened.service.updates == 1
        opened.journal.close()


def test_one_death_is_nobodys_fault(tmp_path: Path) -> None:
    bad_methods.RELEASED.set()
    with hosted(tmp_path, BAD) as served:
        directory = with_deadly_last_event(served, tmp_path / "crash")
        opened = open_service(directory / "journal", served.settings)
        assert opened.service.updates == 2
        opened.journal.close()
        assert Applying(directory / "journal" / APPLYING).fatal_event is None


def test_a_start_after_the_refusal_tries_once_more(tmp_path: Path) -> None:
    path = tmp_path / APPLYING
    for _ in range(3):
        marker = Applying(path)
        marker.begin(4)
        marker.close()
    marker = Applying(path)
    assert marker.fatal_event == 4
    marker.try_again()
    assert Applying(path).fatal_event is None


def test_deaths_in_different_events_are_not_counted_together(tmp_path: Path) -> None:
    path = tmp_path / APPLYING
    for number in (4, 5, 6):
        marker = Applying(path)
        marker.begin(number)
        marker.close()
    assert Applying(path).fatal_event is None


def test_the_tail_from_a_deadly_event_on_can_be_lost(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_deadly_last_event(served, tmp_path / "crash")
        marker = Applying(directory / "journal" / APPLYING)
        marker.begin(6)
        marker.close()
        opened = open_service(directory / "journal", served.settings, Consent(lose_tail=True))
        assert opened.service.updates == 1
        opened.journal.close()


def test_after_the_refusal_the_tail_is_lost_without_another_try(tmp_path: Path) -> None:
    bad_methods.RELEASED.set()  # it would be taken if it were tried
    with hosted(tmp_path, BAD) as served:
        directory = with_deadly_last_event(served, tmp_path / "crash")
        marker = Applying(directory / "journal" / APPLYING)
        marker.begin(6)
        marker.close()
        with pytest.raises(JournalError, match=r"last resort, start with --lose-tail to lose event 6 and everything"):
            open_service(directory / "journal", served.settings)
        opened = open_service(directory / "journal", served.settings, Consent(lose_tail=True))
        assert opened.service.updates == 1
        opened.journal.close()


def test_after_a_replay_that_hangs_the_tail_is_lost_without_another_try(tmp_path: Path) -> None:
    bad_methods.RELEASED.clear()
    with hosted(tmp_path, BAD) as served:
        hanging = with_deadly_last_event(served, tmp_path / "hanging")
        begin = partial(open_service, hanging / "journal", served.settings, Consent(), None)
        with pytest.raises(StuckError, match=r"event 6 .*--lose-tail to lose event 6 and everything after it"):
            asyncio.run(opened_in_time(begin, 0.05, (), asyncio.Event()))
        directory = copied(hanging, tmp_path / "next")
        bad_methods.RELEASED.set()
        opened = open_service(directory / "journal", served.settings, Consent(lose_tail=True))
        assert opened.service.updates == 1
        opened.journal.close()


def test_an_event_that_came_back_after_all_is_not_lost_with_the_tail(tmp_path: Path) -> None:
    marker = Applying(tmp_path / APPLYING)
    marker.begin(6)
    marker.name(6)
    assert Applying(tmp_path / APPLYING).named == 6
    marker.end()
    assert Applying(tmp_path / APPLYING).named is None


# Events that are left out.


def test_an_event_in_the_middle_is_left_out_only_with_those_that_follow_from_it(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        join_all(served)  # events 1 to 4
        for client in (0, 1, 0):
            served.push(client)  # 5, 6, 7
        directory = served.copied(tmp_path / "crash")
        with pytest.raises(DependentError, match=r"Event 7 .*depends on what is left out \(event 5\)") as refusal:
            open_service(directory / "journal", served.settings, without(5))
        assert "--leave-out 5 --leave-out 7 to go on" in str(refusal.value)
        assert restarted(directory, served.settings) == served.digest(), "nothing was changed"
        opened = open_service(directory / "journal", served.settings, without(5, 7))
        assert opened.service.updates == 1
        opened.journal.close()


def test_a_task_from_before_is_not_taken_for_one_that_was_ordered_anew(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        join_all(served)
        served.push(0)
        served.push(1)
        held = served.task(1)
        directory = served.copied(tmp_path / "crash")
        again = Hosted(directory, settings=served.settings, consent=without(5))
        assert again.task(1) > RENUMBERED_BY > held
        assert again.task(0) < RENUMBERED_BY, "its task is the one from before the event"
        again.reconnect(1)
        assert again.push(1).WhichOneof("kind") == "task"
        assert restarted(again.copied(tmp_path / "again"), served.settings) == again.digest()
        again.close()


def test_a_refresh_from_before_is_not_taken_for_one_that_was_sent_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, "support.bad_methods:Refreshing") as served:
        join_all(served)
        served.push(0)  # client 1 is sent a refresh
        task, refresh = served.task(1), served.host.service.flights[1].latest
        assert refresh > task
        directory = served.copied(tmp_path / "crash")
        mend(monkeypatch, mixing=0.25)
        again = Hosted(directory, settings=served.settings, consent=Consent(accept_version=True))
        again.reconnect(1)
        assert refused(again.push(1, task=task, base=refresh), "not yours")
        again.close()


def test_the_same_option_again_changes_nothing(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        join_all(served)
        served.push(0)
        directory = served.copied(tmp_path / "crash")
        consent = without(5)
        once = restarted(directory, served.settings, consent)
        assert restarted(directory, served.settings, consent) == once
        opened = open_service(directory / "journal", served.settings, consent)
        opened.journal.snapshot(opened.service.save_state())
        assert len(opened.journal.about["left_out"]) == 1
        opened.journal.close()
        assert restarted(directory, served.settings, consent) == once, "not even after a snapshot"


def test_a_timer_whose_setting_was_left_out_too_is_not_looked_for_for_ever(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD, patience=1e6) as served:
        served.hello(9)  # 1: sets timers
        served.at(11.0)  # 2: one fails, and is dropped
        served.at(21.0)  # 3: the other fires
        directory = served.copied(tmp_path / "crash")
        with pytest.raises(
            DependentError, match=r"event 3 \(timer 'fine'\) cannot be taken without it, because no timer 'fine' is set"
        ):
            open_service(directory / "journal", served.settings, without(1))
        opened = open_service(directory / "journal", served.settings, without(1, 3))
        assert opened.service.timers == []
        opened.journal.close()


def test_what_is_in_a_snapshot_cannot_be_left_out(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        join_all(served)
        served.host.snapshots.finish(served.host.service)
        served.push(0)
    for number in (3, 6):
        with pytest.raises(UserError, match=rf"Event {number} cannot be left out.* replays events 5 to 5"):
            open_service(served.directory, served.settings, without(number))


def test_a_timer_that_is_left_out_is_gone(tmp_path: Path) -> None:
    with hosted(tmp_path, "support.serving:Impatient", patience=1e6) as served:
        join_all(served)
        served.at(4.0)
        assert served.host.service.strategy.fired_at == [("shrink", 4.0)]
        directory = served.copied(tmp_path / "crash")
        again = Hosted(directory, settings=served.settings, consent=without(5))
        assert again.host.service.strategy.fired_at == []
        assert [key for _, _, key in again.host.service.timers] == ["report"]
        again.close()


# A method that was mended.


def mend(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> None:
    """From now on the code is another version, in which the method has these attributes."""
    monkeypatch.setattr(opening, "code_versions", lambda _: {"code": "mended"})
    for name, value in changed.items():
        monkeypatch.setattr(bad_methods.Bad, name, value)


def test_another_version_replays_the_tail_where_the_operator_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hosted(tmp_path, BAD) as served:
        some_events(served)
        directory = served.copied(tmp_path / "crash")
        mend(monkeypatch)
        with pytest.raises(JournalError, match="--accept-version"):
            open_service(directory / "journal", served.settings)
        opened = open_service(directory / "journal", served.settings, Consent(accept_version=True))
        expected = digest(served.host.service.strategy.save_state())
        assert digest(opened.service.strategy.save_state()) == expected
        assert opened.journal.snapshots() == [opened.journal.last]
        assert last_words(caplog, "version accepted")["reason"] == "no difference was found"
        opened.journal.close()
        assert restarted(directory, served.settings) == opened.service.digest()


def test_another_version_says_from_which_event_the_state_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with hosted(tmp_path, BAD) as served:
        join_all(served)
        for client in (0, 1, 0, 1):
            served.push(client)  # 5 to 8
        held = served.task(0)
        directory = served.copied(tmp_path / "crash")
        mend(monkeypatch, mixing=0.25)
        again = Hosted(directory, settings=served.settings, consent=Consent(accept_version=True))
        assert again.host.service.updates == 4
        assert last_words(caplog, "version accepted")["differs_from_event"] == 5
        assert again.task(0) > RENUMBERED_BY > held, "its model is another one now"
        again.close()


def test_a_mended_method_takes_what_the_old_one_died_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_deadly_last_event(served, tmp_path / "crash")
        for _ in range(2):
            marker = Applying(directory / "journal" / APPLYING)
            marker.begin(6)
            marker.close()
        mend(monkeypatch, updated=bad_methods.mended)
        opened = open_service(directory / "journal", served.settings, Consent(accept_version=True))
        assert opened.service.updates == 2
        opened.journal.close()


def test_a_mended_method_that_dies_as_well_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_deadly_last_event(served, tmp_path / "crash")
        mend(monkeypatch)

        def die(*_: object) -> None:
            raise SystemError("as if the process had ended")

        for _ in range(2):
            with monkeypatch.context() as dying:
                dying.setattr(Service, "apply", die)
                dying.setattr(Applying, "end", lambda _: None)
                dying.setattr(recovery, "Failure", die)
                with pytest.raises(SystemError):
                    open_service(directory / "journal", served.settings, Consent(accept_version=True))
        with pytest.raises(JournalError, match=r"was being applied when the server"):
            open_service(directory / "journal", served.settings, Consent(accept_version=True))


def test_a_snapshot_that_cannot_be_read_is_made_anew_by_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, BAD) as served:
        some_events(served)
        served.host.snapshots.finish(served.host.service)
        directory = served.copied(tmp_path / "crash")
        damage_last_snapshot(directory, flip)
        mend(monkeypatch)
        again = Hosted(directory, settings=served.settings, consent=Consent(accept_version=True))
        assert again.host.service.updates == served.host.service.updates
        again.close()
        assert restarted(directory, served.settings) == again.digest()


def test_an_acknowledged_update_of_the_last_batch_is_not_dropped_by_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def second_fails(method: Any, update: Any, now: float) -> None:
        bad_methods.mended(method, update, now)
        if method.model.version > 1:
            raise KeyError("renamed")

    with hosted(tmp_path, BAD) as served:
        join_all(served)
        served.push(0)
        served.push(1)
        directory = served.copied(tmp_path / "crash")
        with monkeypatch.context() as other:
            mend(other, updated=second_fails)
            with pytest.raises(UnreplayableError, match=r"event 6 \(update of client 1\).*renamed"):
                open_service(directory / "journal", served.settings, Consent(accept_version=True))
        assert restarted(directory, served.settings) == served.digest()


def test_what_another_version_cannot_take_is_named_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("renamed")

    with hosted(tmp_path, BAD) as served:
        join_all(served)
        for client in (0, 1, 0):
            served.push(client)
        directory = served.copied(tmp_path / "crash")
        with monkeypatch.context() as other:
            mend(other, updated=fail)
            with pytest.raises(
                UnreplayableError, match=r"event 5 \(update of client 0\).*renamed.*Nothing was changed"
            ):
                open_service(directory / "journal", served.settings, Consent(accept_version=True))
        assert restarted(directory, served.settings) == served.digest()
