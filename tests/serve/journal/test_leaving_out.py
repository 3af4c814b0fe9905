"""``--leave-out`` does what it says, also after a kill in the middle of it and where numbers are used again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.serve.journal.applying import Applying
from polytempo.serve.journal.continuing import Consent
from polytempo.serve.journal.failures import DependentError, UnreplayableError
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.leaving_out import parse_events
from polytempo.serve.journal.marks import Marks
from polytempo.serve.journal.opening import open_service
from polytempo.serve.paths import APPLYING
from support import bad_methods
from support.serving import Hosted, hosted, join_all, restarted, without

pytestmark = pytest.mark.usefixtures("store")

BAD = "support.bad_methods:Bad"
WITHOUT_5, WITHOUT_6 = without(5), without(6)


def with_two_updates(served: Hosted, to: Path) -> Path:
    """A crash after events 5 and 6, the updates of clients 0 and 1."""
    join_all(served)
    served.push(0)
    served.push(1)
    return served.copied(to)


def updates_after_start(directory: Path, served: Hosted, consent: Consent) -> int:
    opened = open_service(directory / "journal", served.settings, consent)
    opened.journal.close()
    return opened.service.updates


@pytest.mark.parametrize(("where", "point"), [(Journal, "append"), (Marks, "write")])
def test_a_kill_while_an_event_is_left_out_changes_nothing(
    where: type, point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with hosted(tmp_path, BAD) as served:
        directory = with_two_updates(served, tmp_path / "crash")
        with monkeypatch.context() as killed:
            killed.setattr(where, point, kill)
            with pytest.raises(KeyboardInterrupt):
                open_service(directory / "journal", served.settings, WITHOUT_5)
        journal = Journal(directory / "journal")
        assert "left_out" not in journal.about
        journal.close()
        assert restarted(directory, served.settings) == served.digest()
        assert updates_after_start(directory, served, WITHOUT_5) == 1


def test_an_event_that_got_the_number_of_one_left_out_before_can_be_left_out(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_two_updates(served, tmp_path / "crash")
        assert updates_after_start(directory, served, WITHOUT_6) == 1
        die_twice_in(5, directory)
        assert updates_after_start(directory, served, Consent(lose_tail=True)) == 0
        again = Hosted(directory, settings=served.settings)
        assert again.host.journal.about["left_out"] == []
        again.reconnect(0)
        again.push(0)  # event 6: the first after the renumbering in place of event 5
        assert again.host.journal.description_of(6) == "update of client 0"
        later = again.copied(tmp_path / "later")
        again.close()
        assert updates_after_start(later, served, WITHOUT_6) == 0


def test_an_event_can_be_left_out_and_the_tail_behind_it_lost_in_one_start(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_two_updates(served, tmp_path / "crash")
        die_twice_in(6, directory)
        opened = open_service(directory / "journal", served.settings, replace(WITHOUT_5, lose_tail=True))
        assert [row["event"] for row in opened.journal.about["left_out"]] == [5]
        assert opened.service.updates == 0
        opened.journal.close()


def die_in(number: int, directory: Path) -> None:
    marker = Applying(directory / "journal" / APPLYING)
    marker.begin(number)
    marker.close()


def die_twice_in(number: int, directory: Path) -> None:
    for _ in range(2):
        die_in(number, directory)


# Only what is faulty.


def test_an_event_with_which_nothing_is_wrong_is_not_left_out(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_two_updates(served, tmp_path / "crash")
        for number, what in ((1, "client 0 joined"), (6, "update of client 1")):
            with pytest.raises(UserError, match=rf"Event {number} \({what}\) cannot be left out: nothing is wrong"):
                open_service(directory / "journal", served.settings, Consent(leave_out=parse_events([str(number)])))
        assert restarted(directory, served.settings) == served.digest()


def test_an_event_that_a_server_died_in_is_left_out(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_two_updates(served, tmp_path / "crash")
        die_twice_in(6, directory)
        assert updates_after_start(directory, served, Consent(leave_out=parse_events(["6"]))) == 1


def test_an_event_that_fails_at_this_replay_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_two_updates(served, tmp_path / "crash")
        with monkeypatch.context() as broken:
            fail_on_first_update(broken)
            assert updates_after_start(directory, served, Consent(leave_out=parse_events(["5"]))) == 1
        assert updates_after_start(directory, served, Consent()) == 1, "it stays left out"


def fail_on_first_update(patch: pytest.MonkeyPatch) -> None:
    def updated(method: bad_methods.Bad, update: Update, now: float) -> None:
        if update.client == 0:
            raise KeyError("renamed")
        bad_methods.mended(method, update, now)

    patch.setattr(bad_methods.Bad, "updated", updated)


# Events that depend on it, and ranges.


def with_many_updates(served: Hosted, to: Path) -> Path:
    """A crash after events 5 to 64, the updates of clients 0 and 1 in turn."""
    join_all(served)
    for number in range(60):
        served.push(number % 2)
    return served.copied(to)


def test_all_events_that_depend_on_one_are_found_at_once_and_the_option_is_blamed(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_many_updates(served, tmp_path / "crash")
        die_twice_in(5, directory)
        with pytest.raises(DependentError, match=r"Events 7 to 64 .* depend on what is left out") as refusal:
            open_service(directory / "journal", served.settings, Consent(leave_out=parse_events(["5"])))
        assert "--leave-out 5-64 to go on" in str(refusal.value)
        assert "strategy" not in str(refusal.value)


def test_of_a_range_only_what_cannot_be_taken_is_left_out(tmp_path: Path) -> None:
    with hosted(tmp_path, BAD) as served:
        directory = with_many_updates(served, tmp_path / "crash")
        die_twice_in(5, directory)
        consent = Consent(leave_out=parse_events(["5-64"]))
        opened = open_service(directory / "journal", served.settings, consent)
        assert opened.service.updates == 1, "event 6 answers a task from before"
        assert [row["event"] for row in opened.journal.about["left_out"]] == [5, *range(7, 65)]
        opened.journal.close()
        assert restarted(directory, served.settings, consent) == opened.service.digest()


def test_no_range_is_lost_because_the_process_lacks_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def updated(*_: object) -> None:
        raise MemoryError

    with hosted(tmp_path, BAD) as served:
        directory = with_two_updates(served, tmp_path / "crash")
        die_in(5, directory)
        with monkeypatch.context() as broken:
            broken.setattr(bad_methods.Bad, "updated", updated)
            with pytest.raises(UnreplayableError, match=r"event 6 .*Mend that, and start again"):
                open_service(directory / "journal", served.settings, Consent(leave_out=parse_events(["5-6"])))
        assert restarted(directory, served.settings) == served.digest()


@pytest.mark.parametrize("text", ["", "x", "8-", "-8", "9-8", "1-2-3"])
def test_what_is_no_event_and_no_range_is_an_error(text: str) -> None:
    with pytest.raises(UserError, match="Expected an event, such as 8, or a range, such as 8-28"):
        parse_events([text])
