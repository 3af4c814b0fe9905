"""A server that stands by: it applies what the leader has applied, notices when it comes to something else, and goes by
snapshots where it is of another version."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from polytempo.core.state import pack
from polytempo.serve.journal.continuing import Consent
from polytempo.serve.journal.following import Follower
from polytempo.serve.journal.opening import Prepared, prepare_service
from polytempo.serve.storage.errors import JournalError
from support.postgres import Server, in_postgres, in_schema
from support.serving import Hosted, hosted, join_all, some_events

pytestmark = [pytest.mark.usefixtures("store"), in_postgres]
OTHER = {"code": "another"}


@contextmanager
def led(directory: Path, strategy: str = "fedasync") -> Iterator[Hosted]:
    """A service whose leader knows that others read along."""
    with hosted(directory, strategy) as served:
        served.host.journal.store.is_followed = True
        yield served


@contextmanager
def standing_by(served: Hosted, versions: dict[str, str] | None = None) -> Iterator[Follower]:
    prepared = prepare_service(served.directory, served.settings)
    with closing(prepared.journal):
        yield Follower(prepared.journal, prepared.begin, versions or prepared.versions)


def confirm(served: Hosted) -> int:
    """The leader has nothing to do, and says what it has done."""
    served.host.handle([])
    ((confirmed,),) = in_schema(served.directory.parent, "SELECT confirmed FROM lease")
    return int(confirmed)


def test_a_standby_is_where_the_leader_was_when_it_last_said_so(tmp_path: Path) -> None:
    with led(tmp_path) as served, standing_by(served) as follower:
        some_events(served)
        follower.catch_up(1, confirm(served))
        assert follower.service is not None
        assert follower.service.digest() == served.digest()
        before = served.digest()
        served.push(0)
        ((confirmed,),) = in_schema(tmp_path, "SELECT confirmed FROM lease")
        follower.catch_up(1, confirmed)
        assert follower.service.digest() == before  # the last event has not been confirmed
        follower.catch_up(1, confirm(served))
        assert follower.service.digest() == served.digest()
        assert follower.differed_at is None


def test_a_standby_takes_over_from_where_it_is(tmp_path: Path) -> None:
    with led(tmp_path) as served:
        some_events(served)
        with standing_by(served) as follower:
            follower.catch_up(1, confirm(served))
            served.push(0)
            served.push(1)
            warm = follower.warm()
            assert warm is not None
            assert warm.event == served.host.journal.last - 2
        digest = served.digest()
    taken = prepare_service(served.directory, served.settings).lead(Consent(), warm)
    with closing(taken.journal):
        assert taken.service is warm.service
        assert taken.service.digest() == digest


def test_events_that_the_strategy_could_not_take_are_not_applied(tmp_path: Path) -> None:
    with led(tmp_path, "support.serving:Brittle") as served, standing_by(served) as follower:
        join_all(served)
        served.push(0)
        served.push(1, answers={"break": True})
        served.reconnect(0)
        served.push(0)
        follower.catch_up(1, confirm(served))
        assert follower.service is not None
        assert follower.service.digest() == served.digest()


@pytest.mark.parametrize("what", ["outcomes SET outcome = outcome + 1 WHERE number = 7", "snapshots SET digest = 'x'"])
def test_a_standby_that_comes_to_something_else_says_so_and_begins_again(what: str, tmp_path: Path) -> None:
    with led(tmp_path) as served, standing_by(served) as follower:
        follower.catch_up(1, 0)
        some_events(served)
        served.host.journal.snapshot(served.host.service.save_state())
        confirmed = confirm(served)
        in_schema(tmp_path, f"UPDATE {what} RETURNING 1")
        follower.catch_up(1, confirmed)
        assert follower.differed_at in (7, confirmed)
        assert follower.service is None
        in_schema(tmp_path, "UPDATE snapshots SET digest = NULL RETURNING 1")
        follower.catch_up(1, confirmed)
        assert follower.service is not None
        assert follower.service.digest() == served.digest()


def test_a_standby_of_another_version_goes_by_snapshots(tmp_path: Path) -> None:
    with led(tmp_path) as served, standing_by(served, OTHER) as follower:
        follower.catch_up(1, 0)
        some_events(served)
        follower.catch_up(1, confirm(served))
        assert (follower.follows, follower.event, follower.warm()) == ("snapshots", 0, None)
        made = served.host.journal.write_snapshot(served.host.journal.last, *pack(served.host.service.save_state()))
        served.host.journal.add_snapshot(made)
        follower.catch_up(1, confirm(served))
        assert follower.event == served.host.journal.last
        assert follower.service is not None
        assert follower.service.digest() == served.digest()


def test_a_standby_of_another_version_takes_over_where_a_snapshot_is_the_end(tmp_path: Path) -> None:
    with led(tmp_path) as served:
        some_events(served)
        served.host.snapshots.finish(served.host.service)
        digest = served.digest()
    prepared = prepare_service(served.directory, served.settings)
    other = Prepared(prepared.journal, prepared.begin, OTHER)
    with closing(other.lead(Consent()).journal) as journal:
        assert journal.about["versions"] == OTHER
    with standing_by(served) as follower:  # the one before is of another version now
        follower.catch_up(2, journal.last)
        assert follower.follows == "snapshots"
        assert follower.service is not None
        assert follower.service.digest() == digest


def test_an_event_that_hangs_is_not_applied_before_the_leader_has(tmp_path: Path, database: Server) -> None:
    with led(tmp_path) as served, standing_by(served) as follower:
        join_all(served)
        follower.catch_up(1, confirm(served))
        before = served.digest()
        served.host.journal.append([served.events()[-1]])  # and the leader hangs in it
        ((last, confirmed),) = in_schema(tmp_path, "SELECT last, confirmed FROM lease")
        assert confirmed == last - 1
        follower.catch_up(1, confirmed)
        assert follower.service is not None
        assert follower.service.digest() == before


def test_an_event_that_only_the_standby_cannot_take_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    with led(tmp_path) as served, standing_by(served) as follower:
        join_all(served)
        follower.catch_up(1, confirm(served))
        served.push(0)
        confirmed = confirm(served)
        with monkeypatch.context() as broken:
            broken.setattr("polytempo.strategies.methods.fedasync.FedAsync.updated", fail)
            with pytest.raises(JournalError, match="cannot be followed: MemoryError"):
                follower.catch_up(1, confirmed)
        follower.catch_up(1, confirmed)
        assert follower.service is not None
        assert follower.service.digest() == served.digest()


def test_a_tail_that_was_given_up_is_forgotten_by_those_who_read_along(tmp_path: Path) -> None:
    with led(tmp_path) as served:
        some_events(served)
        with standing_by(served) as follower:
            follower.catch_up(1, confirm(served))
            last = served.host.journal.last
            in_schema(tmp_path, f"UPDATE events SET at = at + 1 WHERE number = {last} RETURNING 1")
            served.close()
            again = Hosted(tmp_path, settings=served.settings, consent=Consent(lose_tail=True))
            again.host.journal.store.is_followed = True
            assert again.host.journal.last == last
            follower.catch_up(2, confirm(again))
            assert follower.service is not None
            assert follower.service.digest() == again.digest()
            again.close()
