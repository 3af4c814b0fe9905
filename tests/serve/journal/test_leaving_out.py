"""``--leave-out`` does what it says, also after a kill in the middle of it and where numbers are used again."""

from pathlib import Path
from typing import Any

import pytest

from polytempo.serve.journal.applying import Applying
from polytempo.serve.journal.continuing import Consent
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.store import Journal
from polytempo.serve.paths import APPLYING
from support.serving import Hosted, hosted, join_all, restarted

BAD = "support.bad_methods:Bad"
WITHOUT_5, WITHOUT_6 = Consent(leave_out=(5,)), Consent(leave_out=(6,))


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


@pytest.mark.parametrize("point", ["append", "_transaction"])
def test_a_kill_while_an_event_is_left_out_changes_nothing(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with hosted(tmp_path, BAD) as served:
        directory = with_two_updates(served, tmp_path / "crash")
        with monkeypatch.context() as killed:
            killed.setattr(Journal, point, kill)
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
        opened = open_service(directory / "journal", served.settings, Consent(lose_tail=True, leave_out=(5,)))
        assert [row["event"] for row in opened.journal.about["left_out"]] == [5]
        assert opened.service.updates == 0
        opened.journal.close()


def die_twice_in(number: int, directory: Path) -> None:
    for _ in range(2):
        marker = Applying(directory / "journal" / APPLYING)
        marker.begin(number)
        marker.close()
