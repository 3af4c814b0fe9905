"""The journal's SQLite database, and what can go wrong with it."""

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from polytempo.serve.paths import DATABASE, LOCK
from polytempo.serve.storage.errors import JournalError, UnwritableError
from polytempo_client.disk.locks import LockedError, locked, take

LOG = f"{DATABASE}-wal"
"""SQLite's write-ahead log."""

_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, batch INTEGER NOT NULL, at REAL NOT NULL, wall REAL NOT NULL, kind TEXT NOT NULL,
    client INTEGER NOT NULL, detail TEXT NOT NULL, body BLOB, segment INTEGER, begins INTEGER, size INTEGER,
    crc INTEGER, void TEXT);
CREATE TABLE IF NOT EXISTS outcomes (number INTEGER PRIMARY KEY, outcome INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS snapshots (number INTEGER PRIMARY KEY, size INTEGER NOT NULL, crc INTEGER NOT NULL);
"""


@contextmanager
def transaction(database: sqlite3.Connection, directory: Path) -> Iterator[None]:
    try:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("COMMIT")
    except BaseException as error:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise unwritable(directory, error) from error
        raise


@contextmanager
def reading(directory: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, ValueError) as error:
        raise JournalError(
            f"The journal in {directory} cannot be read: {error}. Nothing was changed. Restore it from a backup."
        ) from error


def connect(directory: Path) -> sqlite3.Connection:
    with reading(directory):
        try:
            # Before SQLite moves its content to the database, as whoever closes it last does.
            _write_log_again_if_no_server_runs(directory)
            database = sqlite3.connect(directory / DATABASE, isolation_level=None, check_same_thread=False)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.executescript(_TABLES)
            return database
        except (OSError, sqlite3.OperationalError) as error:
            raise unwritable(directory, error) from None


def is_taken(directory: Path) -> bool:
    """Does a server hold the journal in this directory?"""
    try:
        descriptor = os.open(directory / LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        take(descriptor, directory / LOCK)
    except LockedError:
        return True
    finally:
        os.close(descriptor)
    return False


def write_log_again(directory: Path) -> None:
    """Make safe what the write-ahead log holds. A server that was killed may have left transactions there that were not
    synced, or whose sync failed; Linux may then take their pages for written, and syncs only what is written again.
    Only for whoever has the lock."""
    try:
        with (directory / LOG).open("r+b") as log:
            content = log.read()
            log.seek(0)
            log.write(content)
            log.flush()
            os.fsync(log.fileno())
    except FileNotFoundError:
        return


def _write_log_again_if_no_server_runs(directory: Path) -> None:
    if (directory / LOCK).exists() and os.access(directory / LOG, os.W_OK):
        with suppress(LockedError, PermissionError), locked(directory / LOCK, seconds=0.0):
            write_log_again(directory)


def is_full(error: BaseException | None) -> bool:
    """Is it SQLite, without room for a whole transaction? After any other error a commit may still have reached the
    write-ahead log."""
    return getattr(error, "sqlite_errorname", "") == "SQLITE_FULL"


def unwritable(directory: Path, error: BaseException) -> JournalError:
    if isinstance(error, JournalError):
        return error
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    kind = JournalError if _forbidden(directory, error) else UnwritableError
    return kind(f"The journal in {directory} cannot be written: {why}. Nothing unsafe was acknowledged.")


def _forbidden(directory: Path, error: BaseException) -> bool:
    """Is it a matter of rights, which do not change by themselves?"""
    if isinstance(error, OSError):
        return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith("SQLITE_CANTOPEN"):  # which SQLite says of a full disk, too
        files = [path for path in (directory, directory / DATABASE) if path.exists()]
        return not all(os.access(path, os.R_OK | os.W_OK) for path in files)
    return name.startswith(("SQLITE_READONLY", "SQLITE_PERM"))
