"""The journal: every event, on disk before anyone is told that it happened.

    journal.sqlite              events in order (WAL, fsync), and what the service is (its configuration)
    updates-NUMBER.bodies       what clients handed in, one safetensors body behind the other, from that event on
    snapshot-NUMBER.safetensors the state after that event

``append`` writes the bodies and syncs them, then commits the rows; a row never speaks of bytes that are not safe. What
a crash leaves behind the last row is forgotten."""

import fcntl
import json
import os
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError

from polytempo.core.errors import UserError
from polytempo.core.files import sync_directory
from polytempo.core.state import load, save
from polytempo.core.vectors import Schema
from polytempo.serve.events import Event
from polytempo.serve.rows import packed, unpacked
from polytempo.serve.wire import Buffer

DATABASE = "journal.sqlite"
SEGMENT_BYTES = 64 << 20
KEPT_SNAPSHOTS = 2

_TABLES = """
CREATE TABLE IF NOT EXISTS about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS events (
    number INTEGER PRIMARY KEY, at REAL NOT NULL, wall REAL NOT NULL, kind TEXT NOT NULL, client INTEGER NOT NULL,
    detail TEXT NOT NULL, segment INTEGER, begins INTEGER, size INTEGER, crc INTEGER, void TEXT);
CREATE TABLE IF NOT EXISTS snapshots (number INTEGER PRIMARY KEY, size INTEGER NOT NULL, crc INTEGER NOT NULL);
"""


class JournalError(UserError):
    """The journal cannot be written or read; nothing that was not safe has been acknowledged."""


@dataclass
class _Segment:
    """The file that bodies are appended to."""

    first: int
    file: int
    end: int = 0


class Journal:
    """One service's journal. Only one process at a time may open it for writing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: int | None = None
        self._segment: _Segment | None = None
        self._database = _connect(directory)
        self.about: dict[str, Any] = {
            name: json.loads(value) for name, value in self._query("SELECT name, value FROM about")
        }
        self.last = max(self._query("SELECT max(number) FROM events")[0][0] or 0, self.newest_snapshot() or 0)
        """Number of the last event."""
        self.unsaved_events = 0
        """Since the last snapshot, ..."""
        self.unsaved_bytes = 0
        """... with their bodies."""
        self.bytes = 0
        """Bodies written since the journal was opened."""

    # Opening.

    @classmethod
    def begin(cls, directory: Path, about: dict[str, Any], state: dict[str, Any]) -> "Journal":
        """A new journal: its first snapshot is the state before the first event."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(directory, error) from None
        journal = cls(directory)
        journal.lock()
        journal.describe(about)
        journal.snapshot(state)
        return journal

    @staticmethod
    def exists(directory: Path) -> bool:
        return (directory / DATABASE).exists()

    def lock(self) -> None:
        """Take the journal for writing."""
        try:
            self._lock = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise JournalError(f"Another server is running on the journal in {self.directory}.") from None
        except OSError as error:
            raise _unwritable(self.directory, error) from None
        self._open_segment()

    def describe(self, about: dict[str, Any]) -> None:
        """What the service is: kept beside the events, so that a journal can be read on its own."""
        self.about = about
        with self._transaction():
            rows = [(name, json.dumps(value)) for name, value in about.items()]
            self._database.executemany("INSERT OR REPLACE INTO about VALUES (?, ?)", rows)

    @property
    def schema(self) -> Schema:
        said = self.about["schema"]
        return Schema(tuple(said["names"]), tuple(map(tuple, said["shapes"])), said["parameters"])

    # Events.

    def append(self, events: Sequence[Event]) -> None:
        """Write the events; they are safe when this returns. If it raises, none of them happened."""
        assert self._segment is not None, "the journal is not locked"
        segment, began = self._segment, self._segment.end
        rows: list[tuple[Any, ...]] = []
        try:
            for event in events:
                detail, body = packed(event, self.schema)
                place: tuple[int | None, ...] = (None, None, None, None)
                if body:
                    crc = 0
                    for part in body:
                        crc = zlib.crc32(part, crc)
                    size = _write(segment.file, body)
                    place = (segment.first, segment.end, size, crc)
                    segment.end += size
                number = self.last + len(rows) + 1
                rows.append((number, event.at, time.time(), event.kind, event.client, detail, *place, None))
            if segment.end > began:
                os.fdatasync(segment.file)
            with self._transaction():
                self._database.executemany(f"INSERT INTO events VALUES ({','.join('?' * 11)})", rows)
        except (OSError, sqlite3.Error, JournalError) as error:
            segment.end = began
            with suppress(OSError):
                os.ftruncate(segment.file, began)
                os.lseek(segment.file, began, os.SEEK_SET)
            raise _unwritable(self.directory, error) from error
        self.last += len(rows)
        self.unsaved_events += len(rows)
        self.unsaved_bytes += segment.end - began
        self.bytes += segment.end - began
        if segment.end >= SEGMENT_BYTES:
            self._open_segment()

    def events(self, after: int, until: int | None = None) -> Iterator[tuple[int, Event]]:
        """The events behind a snapshot, with their numbers. Those that the strategy could not take are left out."""
        schema = self.schema
        cursor = self._database.execute(
            "SELECT number, at, kind, client, detail, segment, begins, size, crc FROM events "
            "WHERE number > ? AND number <= ? AND void IS NULL ORDER BY number",
            (after, self.last if until is None else until),
        )
        with _reading(self.directory):
            for number, at, kind, client, detail, segment, begins, size, crc in cursor:
                body = None if segment is None else self._body(number, segment, begins, size, crc)
                yield number, unpacked(at, kind, client, detail, body, schema)

    def _body(self, number: int, segment: int, begins: int, size: int, crc: int) -> bytearray:
        body = bytearray(size)
        try:
            with (self.directory / _segment_name(segment)).open("rb") as file:
                file.seek(begins)
                whole = file.readinto(body) == size
        except OSError as error:
            raise DamagedError(self.directory, number, error.strerror or str(error)) from None
        if not whole or zlib.crc32(body) != crc:
            raise DamagedError(self.directory, number, "its body is cut off" if not whole else "its checksum is wrong")
        return body

    def void(self, number: int, reason: str) -> None:
        """The strategy could not take this event: it is left out from now on."""
        with self._transaction():
            self._database.execute("UPDATE events SET void = ? WHERE number = ?", (reason, number))

    def cut(self, after: int) -> int:
        """Forget the events after this one; how many they were. Their bodies stay in files that end in ``.lost``."""
        lost = self._query("SELECT count(*) FROM events WHERE number > ?", after)[0][0]
        for (segment,) in self._query("SELECT DISTINCT segment FROM events WHERE number > ?", after):
            if segment is not None and segment > after:
                path = self.directory / _segment_name(segment)
                path.rename(path.with_suffix(".lost"))
        with self._transaction():
            self._database.execute("DELETE FROM events WHERE number > ?", (after,))
            self._database.execute("DELETE FROM snapshots WHERE number > ?", (after,))
        self.last = after
        self._open_segment()
        return cast(int, lost)

    # Snapshots.

    def snapshot(self, state: dict[str, Any]) -> None:
        """Keep the state after the last event, and forget what is older than the oldest snapshot kept."""
        path = self._snapshot_path(self.last)
        try:
            save(state, path)
            size, crc = path.stat().st_size, _file_crc(path)
        except (OSError, SafetensorError) as error:
            raise _unwritable(self.directory, error) from error
        with self._transaction():
            self._database.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (self.last, size, crc))
        self.unsaved_events = self.unsaved_bytes = 0
        self._prune()

    def snapshots(self) -> list[int]:
        """Numbers of the events after which the state was kept, oldest first."""
        return [number for (number,) in self._query("SELECT number FROM snapshots ORDER BY number")]

    def newest_snapshot(self) -> int | None:
        return cast("int | None", self._query("SELECT max(number) FROM snapshots")[0][0])

    def snapshot_bytes(self) -> int:
        """Size of the newest snapshot."""
        rows = self._query("SELECT size FROM snapshots ORDER BY number DESC LIMIT 1")
        return rows[0][0] if rows else 0

    def load_snapshot(self, number: int) -> dict[str, Any]:
        path = self._snapshot_path(number)
        ((size, crc),) = self._query("SELECT size, crc FROM snapshots WHERE number = ?", number)
        try:
            if path.stat().st_size != size or _file_crc(path) != crc:
                raise DamagedError(self.directory, number, f"{path.name} has changed since it was written")
            return cast("dict[str, Any]", load(path))
        except OSError as error:
            raise DamagedError(self.directory, number, f"{path.name}: {error.strerror}") from None

    def forget_before_last_snapshot(self) -> None:
        """Keep only the newest snapshot and what came after it."""
        self._prune(kept=1)

    def _prune(self, kept: int = KEPT_SNAPSHOTS) -> None:
        numbers = self.snapshots()
        for number in numbers[:-kept]:
            self._snapshot_path(number).unlink(missing_ok=True)
        oldest = numbers[-kept:][0]
        with self._transaction():
            self._database.execute("DELETE FROM snapshots WHERE number < ?", (oldest,))
            self._database.execute("DELETE FROM events WHERE number <= ?", (oldest,))
        used = {segment for (segment,) in self._query("SELECT DISTINCT segment FROM events")}
        for path in self.directory.glob("updates-*.bodies"):
            first = int(path.stem.split("-")[1])
            if first not in used and (self._segment is None or first != self._segment.first):
                path.unlink()

    def _snapshot_path(self, number: int) -> Path:
        return self.directory / f"snapshot-{number:012d}.safetensors"

    def close(self) -> None:
        if self._segment is not None:
            os.close(self._segment.file)
            self._segment = None
        self._database.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # Files and SQL.

    def _open_segment(self) -> None:
        """Begin a new file of bodies at the next event; bytes of a crash that no row speaks of go with it."""
        if self._segment is not None:
            os.close(self._segment.file)
        first = self.last + 1
        try:
            file = os.open(self.directory / _segment_name(first), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            sync_directory(self.directory)
        except OSError as error:
            raise _unwritable(self.directory, error) from None
        self._segment = _Segment(first, file)

    def _query(self, sql: str, *values: object) -> list[Any]:
        with _reading(self.directory):
            return self._database.execute(sql, values).fetchall()

    def _transaction(self) -> AbstractContextManager[None]:
        return _transaction(self._database, self.directory)


class DamagedError(JournalError):
    """Something in the journal cannot be read."""

    def __init__(self, directory: Path, number: int, why: str) -> None:
        super().__init__(
            f"The journal in {directory} is damaged at event {number}: {why}. Nothing was changed. Restore it from a "
            "backup, or start with --lose-tail to go on from the last good state and lose what came after it."
        )
        self.number = number


@contextmanager
def _transaction(database: sqlite3.Connection, directory: Path) -> Iterator[None]:
    try:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("COMMIT")
    except BaseException as error:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        if isinstance(error, sqlite3.Error):
            raise _unwritable(directory, error) from error
        raise


@contextmanager
def _reading(directory: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, ValueError) as error:
        raise JournalError(
            f"The journal in {directory} cannot be read: {error}. Nothing was changed. Restore it from a backup."
        ) from error


def _connect(directory: Path) -> sqlite3.Connection:
    with _reading(directory):
        try:
            database = sqlite3.connect(directory / DATABASE, isolation_level=None, check_same_thread=False)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.executescript(_TABLES)
            return database
        except sqlite3.OperationalError as error:
            raise _unwritable(directory, error) from None


def _unwritable(directory: Path, error: BaseException) -> JournalError:
    if isinstance(error, JournalError):
        return error
    why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return JournalError(f"The journal in {directory} cannot be written: {why}. Nothing unsafe was acknowledged.")


def _write(file: int, buffers: Sequence[Buffer]) -> int:
    written = 0
    for buffer in buffers:
        rest = memoryview(buffer)
        while len(rest):
            n = os.write(file, rest)
            written, rest = written + n, rest[n:]
    return written


def _file_crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            crc = zlib.crc32(chunk, crc)
    return crc


def _segment_name(first: int) -> str:
    return f"updates-{first:012d}.bodies"
