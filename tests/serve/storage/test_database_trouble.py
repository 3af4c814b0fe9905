"""A database that is not there, not ours, not willing, full, or gone for a while: one sentence each, and nothing that
is not safe is acknowledged."""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch

from polytempo.core.errors import PassingError, UserError
from polytempo.serve.journal.opening import open_service
from polytempo.serve.storage import database as databases
from polytempo.serve.storage.address import PostgresAddress, database_of, note_database
from polytempo.serve.storage.database import connect
from polytempo.serve.storage.errors import JournalError, LostLeadError
from support.postgres import DATABASE, Server, in_schema, postgres, schema_of
from support.proxy import Proxy
from support.serving import Hosted, hosted, join_all, restarted, some_events, tiny_settings


def opened(directory: Path) -> None:
    open_service(directory / "journal", tiny_settings(directory)).journal.close()


def refusal(directory: Path, address: str) -> JournalError:
    """What is said about a service that is to be kept there."""
    note_database(directory, address)
    with pytest.raises(JournalError) as refused:
        opened(directory)
    assert str(refused.value).count(". ") <= 2
    return refused.value


# What trying again does not mend.


def test_no_such_database(tmp_path: Path, database: Server) -> None:
    said = refusal(tmp_path, database.url("x").replace(f"/{DATABASE}?", "/nowhere?"))
    assert 'database "nowhere" does not exist' in str(said)
    assert not isinstance(said, PassingError)


def test_no_such_user(tmp_path: Path, database: Server) -> None:
    said = refusal(tmp_path, database.url("x", user="nobody"))
    assert 'role "nobody" does not exist' in str(said)
    assert not isinstance(said, PassingError)


def test_a_schema_of_somebody_elses(tmp_path: Path, database: Server) -> None:
    schema = database.new_store(tmp_path)
    database.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.theirs (x int)")
    with pytest.raises(JournalError, match=r"holds something else than a service.*another one with \?schema=NAME"):
        opened(tmp_path)
    assert database.execute(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'") == [("theirs",)]


def test_tables_of_a_newer_version(tmp_path: Path, database: Server) -> None:
    database.new_store(tmp_path)
    opened(tmp_path)
    in_schema(tmp_path, "UPDATE polytempo_version SET version = 99 RETURNING 1")
    with pytest.raises(JournalError, match=r"newer version.*version 99.*Install the newer version"):
        opened(tmp_path)


def test_another_service_in_the_same_schema(tmp_path: Path, database: Server) -> None:
    database.new_store(tmp_path)
    opened(tmp_path)
    with pytest.raises(UserError, match=r"holds another service \(seed is 0 there, 1 here\)"):
        open_service(tmp_path / "journal", tiny_settings(tmp_path, seed=1))


@contextmanager
def role(database: Server, name: str) -> Iterator[None]:
    database.execute(f"CREATE ROLE {name} LOGIN")
    try:
        yield
    finally:
        database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_user_who_may_make_no_schema(tmp_path: Path, database: Server) -> None:
    with role(database, "modest"):
        said = refusal(tmp_path, database.url("of_modest", user="modest"))
        assert "permission denied" in str(said)
        assert not isinstance(said, PassingError)
        database.execute("CREATE SCHEMA of_modest AUTHORIZATION modest")
        opened(tmp_path)  # the schema may be made for it
        database.execute("ALTER ROLE modest NOLOGIN")
        said = refusal(tmp_path, database.url("of_modest", user="modest"))
        assert "not permitted to log in" in str(said)


def test_a_database_that_does_not_sync(tmp_path: Path) -> None:
    with postgres(settings=("fsync=off",)) as lax:
        said = refusal(tmp_path, lax.url("x"))
    assert "fsync is off" in str(said)
    assert not isinstance(said, PassingError)


def test_a_database_that_reports_commits_too_early_is_told_not_to(
    tmp_path: Path, database: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(databases, "log", lambda event, **_: said.append(event))
    database.execute(f"ALTER DATABASE {DATABASE} SET synchronous_commit = off")
    try:
        with connect(PostgresAddress.parse(database.url("x"))) as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    finally:
        database.execute(f"ALTER DATABASE {DATABASE} RESET synchronous_commit")
    assert said == ["synchronous commit"]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("mysql://db/services", "no address of a database"),
        ("postgresql://db/services?schema=a b", "no name for a service's schema"),
        ("postgresql://db/services?schema=pg_catalog", "no name for a service's schema"),
    ],
)
def test_addresses_that_are_none(address: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        PostgresAddress.parse(address)


def test_a_password_is_in_no_message(tmp_path: Path) -> None:
    address = PostgresAddress.parse("postgresql://ann:secret@127.0.0.1:1/services?password=hidden&schema=x")
    with pytest.raises(PassingError) as refused:
        connect(address)
    for text in (str(refused.value), repr(refused.value), str(address), repr(address)):
        assert "secret" not in text
        assert "hidden" not in text


# What passes.


def test_a_database_that_is_away(tmp_path: Path, database: Server) -> None:
    said = refusal(tmp_path, f"postgresql://postgres@/{DATABASE}?host={tmp_path}")
    assert isinstance(said, PassingError)


def test_a_database_that_may_only_be_read_acknowledges_nothing_until_it_may_be_written(
    tmp_path: Path, database: Server
) -> None:
    database.new_store(tmp_path)
    with hosted(tmp_path) as served:
        some_events(served)
        before = served.digest()
        store = served.host.journal.store
        store._connection.execute("SET default_transaction_read_only = on")  # type: ignore[attr-defined]
        assert served.push(0).refusal.again
        assert served.shared.meters.journal_failing
        assert served.digest() == before
        store._connection.execute("SET default_transaction_read_only = off")  # type: ignore[attr-defined]
        served.host.handle([])
        assert not served.shared.meters.journal_failing
        served.push(0)
        assert restarted(served.copied(tmp_path / "later"), served.settings) == served.digest() != before


def test_rights_that_are_taken_away_while_it_serves(tmp_path: Path, database: Server) -> None:
    with role(database, "serving"):
        database.execute("CREATE SCHEMA of_serving AUTHORIZATION serving")
        note_database(tmp_path, database.url("of_serving", user="serving"))
        with hosted(tmp_path) as served:
            some_events(served)
            before = served.digest()
            database.execute("REVOKE INSERT ON of_serving.events FROM serving")
            assert served.push(0).refusal.again
            assert served.digest() == before
            database.execute("GRANT INSERT ON of_serving.events TO serving")
            served.push(0)
            assert served.digest() != before


@pytest.fixture
def small_disk(tmp_path: Path, database: Server) -> Iterator[Path]:
    """A file system of few megabytes, where the system lets us make one."""
    disk = database.directory / "small"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "small", disk], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("only root can mount a small disk")
    try:
        (disk / "tables").mkdir()
        os.chown(disk / "tables", 65534, 65534)
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
        disk.rmdir()


def test_a_database_that_is_full_acknowledges_nothing_until_there_is_room(
    tmp_path: Path, database: Server, small_disk: Path
) -> None:
    database.new_store(tmp_path)
    with hosted(tmp_path) as served:
        join_all(served)
        schema = schema_of(tmp_path)
        database.execute(f"CREATE TABLESPACE small LOCATION '{small_disk / 'tables'}'")
        try:
            database.execute(f"ALTER TABLE {schema}.events SET TABLESPACE small")
            answers = {"much": torch.zeros(60_000)}
            replies = [served.push(0, answers=answers) for _ in range(20)]
            full = [reply.refusal.again for reply in replies]
            assert True in full
            assert full[full.index(True) :] == [True] * full.count(True)  # it stays full
            assert served.shared.meters.journal_failing
            before = served.digest()
            assert restarted(served.copied(tmp_path / "crash"), served.settings) == before
            subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
            served.host.handle([])
            assert not served.shared.meters.journal_failing
            assert not served.push(0, answers=answers).HasField("refusal")
            assert restarted(served.copied(tmp_path / "later"), served.settings) == served.digest() != before
        finally:
            database.execute(f"ALTER TABLE {schema}.events SET TABLESPACE pg_default")
            database.execute("DROP TABLESPACE small")


# A connection that breaks at the wrong moment.


@pytest.fixture
def proxied(tmp_path: Path, database: Server) -> Iterator[Proxy]:
    """The service of the test's directory reaches its database through a proxy."""

    def connect_to_database() -> socket.socket:
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(str(database.directory / ".s.PGSQL.5432"))
        return connected

    database.new_store(tmp_path)
    with closing(Proxy(connect_to_database)) as proxy:
        schema = schema_of(tmp_path)
        note_database(tmp_path, f"postgresql://postgres@127.0.0.1:{proxy.port}/{DATABASE}?schema={schema}")
        yield proxy


def direct(directory: Path, database: Server, to: Path) -> Path:
    """The same service, without the proxy."""
    address = database_of(directory)
    assert address is not None
    note_database(to, database.url(address.schema))
    return to


@pytest.mark.parametrize("committed", [True, False])
def test_whether_a_broken_commit_counts_is_found_out_by_whoever_leads_next(
    committed: bool, tmp_path: Path, database: Server, proxied: Proxy
) -> None:
    with hosted(tmp_path) as served:
        join_all(served)
        served.push(0)
        before, updates = served.digest(), served.host.service.updates
        head, body = served.pushed(1)
        request = served.request(1, head, body)
        if committed:
            proxied.is_deaf = True
            breaking = proxied.break_soon(lambda: last_event(tmp_path, database) == served.host.journal.last + 1)
        else:
            breaking = None
            proxied.break_connections()
        with pytest.raises(LostLeadError):
            served.host.handle([request])
        if breaking is not None:
            breaking.join()
        proxied.mend()
        assert served.digest() == before  # nothing has happened for this process
        assert served.sessions[1].reply(head.request) is None  # and nobody was told anything
        in_schema(tmp_path, "UPDATE lease SET expires = '-infinity' RETURNING 1")
        again = Hosted(direct(tmp_path, database, tmp_path / "next"), settings=served.settings)
        assert again.host.service.updates == updates + committed
        again.hello(1, head.push.task)
        assert again.ask(1, head, body).WhichOneof("kind") == "task"
        assert again.host.service.updates == updates + 1
        again.close()


def last_event(directory: Path, database: Server) -> int:
    ((number,),) = database.execute(f"SELECT max(number) FROM {schema_of(directory)}.events")
    return int(number)
