"""Connections to a service's PostgreSQL database, and what can go wrong with it."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from polytempo.core.errors import UserError
from polytempo.serve.storage.address import PostgresAddress
from polytempo.serve.storage.errors import JournalError, LostLeadError, UnwritableError
from polytempo_client.logs import log

try:
    import psycopg
except ImportError:
    raise UserError(
        "A service that is kept in PostgreSQL needs the package psycopg. Install it: "
        "pip install --constraint constraints.txt '.[postgres]' in the source of Polytempo."
    ) from None

Connection = psycopg.Connection[tuple[Any, ...]]
LABEL = "polytempo"
"""What the database calls the connections of a command."""
CONNECT_SECONDS = 5
SESSION = {
    "client_min_messages": "error",
    "idle_in_transaction_session_timeout": "30s",
    "lock_timeout": "10s",
    "default_transaction_isolation": "read committed",
}
"""What every connection is set to. Nobody waits for a lock, or holds one, for ever."""
SAFE = ("on", "remote_apply")
"""Of ``synchronous_commit``: a commit is on disk before it is reported, here and with the replicas that the database is
told to wait for."""
LASTING = {
    "3D000": "there is no such database",
    "28000": "it does not let this user in",
    "28P01": "the password is wrong",
    "42501": "its user may not do this",
    "42P01": "a table is missing",
    "3F000": "the schema is missing",
}
"""Errors that trying again does not mend, by their code in SQL."""
LASTING_WORDS = (
    "does not exist",
    "authentication failed",
    "no pg_hba.conf entry",
    "not permitted",
    "permission denied",
)
"""The same where a connection is refused: the library then tells no code."""
OUR_MISTAKE = "42"
"""What codes of wrong SQL, names and rights begin with."""
PASSING = {
    "53100": "its disk is full",
    "53200": "it has no memory left",
    "53300": "it takes no more connections",
    "25006": "it may only be read now, as a replica may",
    "57P01": "it is being stopped",
    "57P03": "it is starting, or being stopped",
    "55P03": "somebody else holds what is to be changed",
}


def connect(address: PostgresAddress, label: str = LABEL) -> Connection:
    """A connection on which every statement is a transaction of its own, unless it is told otherwise. Names are those
    of the service's schema."""
    try:
        connection = psycopg.connect(
            address.conninfo,
            autocommit=True,
            application_name=label,
            connect_timeout=CONNECT_SECONDS,
            keepalives_idle=5,
            keepalives_interval=2,
            keepalives_count=3,
        )
    except psycopg.Error as error:
        raise in_words(address, error) from None
    try:
        with told_in_words(address):
            settings = {**SESSION, "search_path": address.schema, "client_encoding": "UTF8"}
            connection.execute(
                "SELECT set_config(name, value, false) FROM unnest(%s::text[], %s::text[]) AS settings (name, value)",
                (list(settings), list(settings.values())),
            )
            _check_safe(connection, address)
        return connection
    except BaseException:
        connection.close()
        raise


def _check_safe(connection: Connection, address: PostgresAddress) -> None:
    """Is what is committed on disk?"""
    found: dict[str, str] = dict(
        connection.execute(
            "SELECT name, setting FROM pg_settings WHERE name IN ('synchronous_commit', 'fsync')"
        ).fetchall()
    )
    if found["fsync"] != "on":
        raise JournalError(
            f"The database {address} does not sync what it commits (fsync is {found['fsync']}), so nothing in it is "
            "safe. Set fsync = on in postgresql.conf."
        )
    if found["synchronous_commit"] not in SAFE:
        log(
            "synchronous commit",
            level=logging.WARNING,
            reason=f"The database has synchronous_commit = {found['synchronous_commit']}; the service sets it to on.",
        )
        connection.execute("SELECT set_config('synchronous_commit', 'on', false)")


@contextmanager
def told_in_words(address: PostgresAddress) -> Iterator[None]:
    """Errors of the database become ours."""
    try:
        yield
    except psycopg.Error as error:
        raise in_words(address, error) from error


def in_words(address: PostgresAddress, error: psycopg.Error) -> JournalError:
    """What an error of the database means for the service."""
    code, said = error.sqlstate or "", _said(error)
    if isinstance(error, psycopg.errors.NotNullViolation) and "epoch" in said:
        return LostLeadError(f"The lead of the service in {address} was lost: another server has it now.")
    if code in LASTING or code.startswith(OUR_MISTAKE) or (not code and any(words in said for words in LASTING_WORDS)):
        why = f"{LASTING[code]} ({said})" if code in LASTING else said
        return JournalError(f"The database {address} cannot be used: {why}. Nothing unsafe was acknowledged.")
    why = f"{PASSING[code]} ({said})" if code in PASSING else said
    return UnwritableError(f"The database {address} cannot be used now: {why}. Nothing unsafe was acknowledged.")


def _said(error: psycopg.Error) -> str:
    """The first sentence of the database, without the program's words around it."""
    said = error.diag.message_primary or str(error)
    lines = [line.rpartition("FATAL:")[2].strip() for line in said.splitlines() if line.strip()]
    return (lines[-1] if "FATAL:" in said else lines[0] if lines else type(error).__name__).rstrip(".")


def is_broken(connection: Connection) -> bool:
    """Has it ended, or is it of no more use?"""
    return connection.closed or connection.broken


class DatabaseStatements:
    """An open transaction. SQL has ``?`` in the place of values, as SQLite has."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any:
        return self._connection.execute(_placed(statement), values)

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> Any:
        with self._connection.cursor() as cursor:
            return cursor.executemany(_placed(statement), rows)


def query(connection: Connection, statement: str, values: Sequence[Any] = ()) -> list[Any]:
    """The rows of a question, whose SQL has ``?`` in the place of values."""
    with connection.cursor(binary=True) as cursor:
        return cursor.execute(_placed(statement), values).fetchall()


@lru_cache(maxsize=256)
def _placed(statement: str) -> bytes:
    return statement.replace("?", "%s").encode()


def roll_back(connection: Connection) -> None:
    """End a transaction that failed; a connection that cannot is closed."""
    try:
        connection.rollback()
    except psycopg.Error:
        with suppress(psycopg.Error):
            connection.close()
