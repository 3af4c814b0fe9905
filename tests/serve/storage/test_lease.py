"""Who leads, as the database decides it: two never write in one epoch, and nobody waits for one that stands still."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from polytempo.serve.storage import lease
from polytempo.serve.storage.address import PostgresAddress, database_of
from polytempo.serve.storage.database import Connection, DatabaseStatements, connect, told_in_words
from polytempo.serve.storage.errors import LostLeadError, TakenError
from polytempo.serve.storage.leading import Lead
from polytempo.serve.storage.tables import make_tables
from support.postgres import Server
from support.serving import until

LONG = 1000.0


@pytest.fixture
def address(tmp_path: Path, database: Server) -> PostgresAddress:
    database.new_store(tmp_path)
    found = database_of(tmp_path)
    assert found is not None
    make_tables(found)
    return found


@contextmanager
def connected(address: PostgresAddress, label: str) -> Iterator[Connection]:
    with connect(address, label) as connection:
        yield connection


def run_out(connection: Connection) -> None:
    connection.execute("UPDATE lease SET expires = clock_timestamp() - interval '1 s'")


def write_fenced(connection: Connection, address: PostgresAddress, epoch: int, end: int) -> None:
    """What an append is, but for the events."""
    with told_in_words(address), connection.transaction():
        lease.fence_end(DatabaseStatements(connection), epoch, end, end - 1, behind=end - 1)


def test_a_lease_is_taken_once_and_again_only_when_it_has_run_out(address: PostgresAddress) -> None:
    with connected(address, "a") as a, connected(address, "b") as b:
        assert lease.take(a, "a", LONG) == 1
        assert lease.take(b, "b", LONG) is None
        assert lease.renew(a, 1, "a", LONG)
        run_out(a)
        assert lease.take(b, "b", LONG) == 2
        assert not lease.renew(b, 1, "a", LONG)


def test_of_many_who_want_it_at_once_one_gets_it(address: PostgresAddress) -> None:
    taken: list[int | None] = []
    begin = threading.Barrier(8)

    def want(name: str) -> None:
        with connected(address, name) as connection:
            begin.wait()
            taken.append(lease.take(connection, name, LONG))

    threads = [threading.Thread(target=want, args=(f"server {i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken, key=str) == [1] + [None] * 7


def test_whoever_lost_the_lease_writes_nothing_more(address: PostgresAddress) -> None:
    with connected(address, "a") as a, connected(address, "b") as b:
        lease.take(a, "a", LONG)
        write_fenced(a, address, 1, 1)
        run_out(a)
        lease.take(b, "b", LONG)
    with connected(address, "a") as a, pytest.raises(LostLeadError):  # its first connection was ended
        write_fenced(a, address, 1, 2)
    with connected(address, "b") as b:
        assert lease.look(b).last == 1
        write_fenced(b, address, 2, 2)


def test_what_was_written_before_the_lease_is_taken_is_seen_by_whoever_takes_it(address: PostgresAddress) -> None:
    """The writer holds the row of the lease until it commits, and whoever takes the lease waits for that."""
    with connected(address, "a") as a, connected(address, "b") as b:
        lease.take(a, "a", LONG)
        taken: list[int | None] = []
        with a.transaction():
            lease.fence_end(DatabaseStatements(a), 1, 1, 0, behind=0)
            taking = threading.Thread(target=lambda: taken.append(lease.take(b, "a", LONG)))  # by its own name
            taking.start()
            until(lambda: waiting(address))
            assert not taken
        taking.join()
        assert taken == [2]
        assert lease.look(b).last == 1


def waiting(address: PostgresAddress) -> bool:
    """Does somebody wait for a lock?"""
    with psycopg.connect(address.conninfo) as connection:
        of_this = "datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%lease%'"
        return bool(connection.execute(f"SELECT 1 FROM pg_stat_activity WHERE {of_this}".encode()).fetchall())


def test_a_leader_that_stands_still_in_a_transaction_keeps_nobody_waiting(address: PostgresAddress) -> None:
    with connected(address, "stalled") as stalled, connected(address, "b") as b:
        lease.take(stalled, "stalled", LONG)
        stalled.execute("BEGIN")
        lease.fence_end(DatabaseStatements(stalled), 1, 1, 0, behind=0)
        with connected(address, "operator") as other:
            assert lease.look(other).last == 0
            # The row is locked: only what is in it can be changed by whoever has it.
            stalled.execute("UPDATE lease SET expires = clock_timestamp()")
            stalled.execute("COMMIT")
            stalled.execute("BEGIN")
            lease.fence(DatabaseStatements(stalled), 1)
        assert lease.take(b, "b", LONG) == 2
        with pytest.raises(psycopg.Error):
            stalled.execute("COMMIT")


def test_a_journal_that_ends_elsewhere_than_its_leader_thinks_is_not_written_to(address: PostgresAddress) -> None:
    with connected(address, "a") as a:
        lease.take(a, "a", LONG)
        write_fenced(a, address, 1, 1)
        with pytest.raises(LostLeadError):
            write_fenced(a, address, 1, 7)
        assert lease.look(a).last == 1


def test_a_lease_that_is_handed_over_is_the_successors(address: PostgresAddress) -> None:
    with connected(address, "a") as a, connected(address, "b") as b, connected(address, "c") as c:
        lease.take(a, "a", LONG)
        assert lease.hand_over(a, 1, "a", "b", LONG)
        assert lease.take(c, "c", LONG) is None
        assert lease.take(b, "b", LONG) == 3
        assert not lease.hand_over(a, 1, "a", "c", LONG)


def test_a_lead_is_renewed_until_it_is_given_up(address: PostgresAddress) -> None:
    lead = Lead(address, "a", 0.5)
    with connected(address, "watching") as connection:
        first = lease.look(connection)
        until(lambda: lease.look(connection).seconds > 0.4)  # renewed: it had less a moment before
        with pytest.raises(TakenError, match="Another server leads"):
            Lead(address, "b", LONG)
        assert lead.is_held
        assert lead.give_up()
        assert not lead.is_held
        assert lease.look(connection).is_free
        assert lease.look(connection).epoch == first.epoch == 1


def test_a_lead_that_somebody_took_is_not_held_any_more(address: PostgresAddress) -> None:
    lead = Lead(address, "a", 0.5)
    with connected(address, "b") as b:
        b.execute("UPDATE lease SET epoch = epoch + 1, holder = 'b'")
        until(lambda: not lead.is_held)
        assert not lead.give_up("c")
        assert lease.look(b).holder == "b"
