"""The journal: every event, on disk before anyone is told that it happened.

    journal.sqlite              events in order (WAL, fsync), and what the service is (its configuration)
    updates-NUMBER.bodies       updates of clients, one safetensors body behind the other, from that event on;
                                small ones lie in their rows, which saves a sync
    snapshot-NUMBER.safetensors the state after that event

``append`` writes the bodies and syncs them, then commits the rows; a row never speaks of bytes that are not safe. What
a crash leaves behind the last row is forgotten.

A commit whose sync fails is in doubt. SQLite rolls it back, but its rows lie in the write-ahead log: whoever opens the
database after a kill finds them. They count until another transaction takes their place there. Until then their bodies
stay, and events that were refused may turn out to have happened: clients try again, and a repeat is answered."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from polytempo.core.disk.files import make_directory
from polytempo.core.state import pack, save_packed
from polytempo.serve.journal.applying import Applying
from polytempo.serve.journal.database import (
    DamagedError,
    JournalError,
    TakenError,
    connect,
    is_full,
    reading,
    transaction,
    unwritable,
    write_log_again,
)
from polytempo.serve.journal.marks import Marks, write_about
from polytempo.serve.journal.rows import (
    COLUMNS,
    INSERT,
    EventRow,
    PackedEvent,
    instead_of,
    pack_event,
    unpack_event,
)
from polytempo.serve.journal.segments import SEGMENT_BYTES, Segment, body_of, segment_name, set_aside
from polytempo.serve.journal.snapshot_files import Snapshot, remove_others, snapshot_name
from polytempo.serve.paths import APPLYING, DATABASE, LOCK
from polytempo.serve.state.events import Event
from polytempo_client.disk.locks import LockedError, take
from polytempo_client.model.schema import Schema

SMALL_BYTES = 32 << 10
"""Bodies up to this size lie in their rows."""
KEPT_SNAPSHOTS = 2
BRIEFLY = 1.0
"""Seconds to wait for the lock: whoever opens a journal that was not closed holds it for a moment."""


class Journal:
    """One service's journal. Only one process at a time may open it for writing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock: int | None = None
        self._segment: Segment | None = None
        self._failed_bytes = 0  # of the last events that could not be written
        self._doubtful_from: int | None = None  # where bodies of rows in doubt begin, in the open segment
        self.marks = Marks()
        self.applying = Applying()
        self._database = connect(directory)
        self.about = self._read_about()
        self.last = 0
        """Number of the last event."""
        self.unsaved_events = 0
        """Since the last snapshot, ..."""
        self.unsaved_bytes = 0
        """... with their bodies."""
        self.snapshot_bytes = 0
        """Size of the newest snapshot."""
        self._find_end()

    # Opening.

    @classmethod
    def begin(cls, directory: Path, about: dict[str, Any], state: dict[str, Any]) -> "Journal":
        """A new journal: its first snapshot is the state before the first event."""
        try:
            make_directory(directory, 0o700)
        except OSError as error:
            raise unwritable(directory, error) from None
        journal = cls(directory)
        try:
            journal.lock()
            journal.describe(about)
            journal.snapshot(state)
            # What the service is now lies in the database itself: damage to the write-ahead log can only cost events.
            journal._query("PRAGMA wal_checkpoint(FULL)")
        except BaseException:
            journal.close()
            raise
        return journal

    @staticmethod
    def exists(directory: Path) -> bool:
        """Is there a journal? One that a crash kept from getting its first snapshot has not begun."""
        if not (directory / DATABASE).exists():
            return False
        journal = Journal(directory)
        try:
            return bool(journal.snapshots())
        finally:
            journal.close()

    def lock(self) -> None:
        """Take the journal for writing."""
        try:
            with suppress(PermissionError):  # nobody else may write here; who may read it is up to whoever made it
                self.directory.chmod(self.directory.stat().st_mode & ~0o022)
            self._lock = os.open(self.directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            take(self._lock, self.directory, BRIEFLY)
            write_log_again(self.directory)
        except LockedError:
            raise TakenError(f"Another server is running on the journal in {self.directory}.") from None
        except OSError as error:
            raise unwritable(self.directory, error) from None
        self.applying = Applying(self.directory / APPLYING)
        self.about = self._read_about()  # another server may have written until a moment ago
        self._find_end()
        self._open_segment()

    def _find_end(self) -> None:
        newest = self.newest_snapshot() or 0
        ((last, size),) = self._query(
            "SELECT max(number), sum(size + length(detail)) FROM events WHERE number > ?", newest
        )
        self.last = last or newest
        self.unsaved_events, self.unsaved_bytes = self.last - newest, size or 0
        self.snapshot_bytes = self._newest_size()

    def _read_about(self) -> dict[str, Any]:
        return {name: json.loads(value) for name, value in self._query("SELECT name, value FROM about")}

    def describe(self, about: dict[str, Any]) -> None:
        """What the service is: kept beside the events, so that a journal can be read on its own."""
        self.about = about
        with self._transaction():
            write_about(self._database, about)

    @cached_property
    def schema(self) -> Schema:
        known = self.about["schema"]
        shapes = tuple(map(tuple, known["shapes"]))
        return Schema(tuple(known["names"]), shapes, known["parameters"], known.get("frozen", ""))

    # Events.

    def append(self, events: Sequence[Event]) -> None:
        """Write the events; they are safe when this returns. If it raises, none of them has happened for this process;
        if it is killed before the next transaction, whoever starts next may find all of them."""
        self._settle()
        segment = self._segment_for_more()
        began, batch = segment.end, self.last + 1
        packed = [pack_event(event, self.schema) for event in events]
        try:
            rows = [self._row(one, batch + i, batch, segment) for i, one in enumerate(packed)]
            if segment.end > began:
                segment.sync()
            with self._transaction():
                self.marks.write(self._database)
                self._database.executemany(INSERT, rows)
        except (OSError, JournalError) as error:
            if isinstance(error, OSError) or is_full(error.__cause__):
                segment.cut(began)
            else:
                self._doubtful_from = began
            self._failed_bytes = sum(one.size for one in packed)
            raise unwritable(self.directory, error) from error
        self._clear_marks()
        self.last += len(rows)
        self.unsaved_events += len(rows)
        self.unsaved_bytes += sum(row.size + len(row.detail) for row in rows)

    def _row(self, packed: PackedEvent, number: int, batch: int, segment: Segment) -> EventRow:
        """The event's row; a large body is appended to the segment."""
        if packed.size <= SMALL_BYTES:
            return packed.row(number, batch, time.time())
        return packed.row(number, batch, time.time(), segment.first, segment.append(packed.body, packed.size))

    def _settle(self) -> None:
        """End the doubt about the last commit: another one takes its place in the write-ahead log."""
        if self._doubtful_from is not None:
            assert self._segment is not None, "the journal is not locked"
            self.describe(self.about)
            self._segment.cut(self._doubtful_from)
            self._doubtful_from = None

    def check_writable(self) -> None:
        """Raises if what could not be written last cannot be written now."""
        self._settle()
        segment = self._segment_for_more()
        try:
            segment.check_room(self._failed_bytes)
        except OSError as error:
            raise unwritable(self.directory, error) from error
        self.describe(self.about)

    def events(self, after: int, until: int | None = None) -> Iterator[tuple[int, Event]]:
        """The events behind a snapshot, with their numbers. Void ones are left out; of a timer it stays that it is
        gone."""
        schema = self.schema
        with reading(self.directory):
            cursor = self._database.execute(
                f"SELECT {COLUMNS} FROM events WHERE number > ? AND number <= ? ORDER BY number",
                (after, self.last if until is None else until),
            )
            for row in map(EventRow._make, cursor):
                if row.void is not None or row.number in self.marks.void:
                    if (instead := instead_of(row)) is not None:
                        yield row.number, instead
                    continue
                body = body_of(row, self.directory)
                if not row.is_intact(body):
                    raise DamagedError(self.directory, row.number, "its checksum is wrong")
                yield row.number, unpack_event(row, body, schema)

    def events_after_snapshot(self, number: int, until: int | None = None) -> Iterator[tuple[int, Event]]:
        """The same, without a gap behind the snapshot: another one may be older than the oldest event kept."""
        ((first,),) = self._query("SELECT min(number) FROM events WHERE number > ?", number)
        if first is not None and first > number + 1:
            raise DamagedError(self.directory, number + 1, "it is missing")
        return self.events(number, until)

    def void(self, number: int, reason: str) -> None:
        """The strategy could not take this event: it is left out from now on. If the disk is full, the mark is made
        with the next events."""
        self.marks.void[number] = reason
        with suppress(JournalError):
            with self._transaction():
                self.marks.write(self._database)
            self._clear_marks()

    def voided(self) -> set[int]:
        """Numbers of the events that are left out, of those that the journal still holds."""
        return {number for (number,) in self._query("SELECT number FROM events WHERE void IS NOT NULL")}

    def _clear_marks(self) -> None:
        """They are written."""
        self.about = self.about | self.marks.about
        self.marks.clear()

    def outcomes(self) -> dict[int, int]:
        """What events came to, where that is known."""
        return dict(self._query("SELECT number, outcome FROM outcomes"))

    def description_of(self, number: int) -> str:
        """What an event is, in words."""
        rows = self._query("SELECT kind, client, detail FROM events WHERE number = ?", number)
        if not rows:
            return "not in the journal"
        kind, client, detail = rows[0]
        return Event(kind, 0.0, client, key=json.loads(detail).get("key", "")).description

    def last_batch(self) -> int:
        """Number of the first event of those that were written with the last one."""
        rows = self._query("SELECT batch FROM events ORDER BY number DESC LIMIT 1")
        return rows[0][0] if rows else self.last + 1

    def replace_tail(self, after: int, event: Event) -> None:
        """Forget the events after this one, in one step with putting another in their place: whoever starts next sees
        that something is missing. Records of those that were left out go with them: their numbers are used again. Their
        bodies stay in files that end in ``.lost``."""
        left_out = (self.about | self.marks.about).get("left_out", [])
        self.marks.about["left_out"] = [row for row in left_out if row["event"] <= after]
        lost = self._query("SELECT DISTINCT segment FROM events WHERE number > ? AND segment > ?", after, after)
        row = pack_event(event, self.schema).row(after + 1, after + 1, time.time())
        with self._transaction():
            self.marks.write(self._database)
            self._database.execute("DELETE FROM events WHERE number > ?", (after,))
            self._database.execute("DELETE FROM outcomes WHERE number > ?", (after,))
            self._database.execute("DELETE FROM snapshots WHERE number > ?", (after,))
            self._database.execute(INSERT, row)
        self._clear_marks()
        set_aside(self.directory, [segment for (segment,) in lost])
        self._find_end()
        self._open_segment()

    # Snapshots.

    def snapshot(self, state: dict[str, Any]) -> None:
        """Keep the state after the last event, and forget what is older than the oldest snapshot kept."""
        self.keep_snapshot(self.write_snapshot(self.last, *pack(state)))

    def write_snapshot(self, number: int, text: str, tensors: list[Tensor]) -> Snapshot:
        """The packed state after an event, as a file. Any thread may do this; the state counts when it is kept."""
        try:
            save_packed(text, tensors, self.directory / snapshot_name(number), 0o600)
            return Snapshot.of(self.directory, number)
        except OSError as error:
            raise unwritable(self.directory, error) from error

    def add_snapshot(self, made: Snapshot) -> None:
        """From now on recovery begins there. Nothing is forgotten, so this is safe beside a server that is stuck."""
        row = (made.number, made.size, made.crc)
        with self._transaction():
            if made.number >= (self.newest_snapshot() or 0):  # the server may have come back, and made a newer one
                self._database.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", row)

    def keep_snapshot(self, made: Snapshot) -> None:
        """From now on recovery begins there; what is older than the oldest snapshot kept is forgotten."""
        self.add_snapshot(made)
        self._find_end()
        try:
            self._prune()
        except OSError as error:
            raise unwritable(self.directory, error) from error

    def snapshots(self) -> list[int]:
        """Numbers of the events after which the state was kept, oldest first."""
        return [number for (number,) in self._query("SELECT number FROM snapshots ORDER BY number")]

    def newest_snapshot(self) -> int | None:
        return cast("int | None", self._query("SELECT max(number) FROM snapshots")[0][0])

    def _newest_size(self) -> int:
        rows = self._query("SELECT size FROM snapshots ORDER BY number DESC LIMIT 1")
        return rows[0][0] if rows else 0

    def load_snapshot(self, number: int) -> dict[str, Any]:
        ((size, crc),) = self._query("SELECT size, crc FROM snapshots WHERE number = ?", number)
        return Snapshot(number, size, crc).read(self.directory)

    def files(self) -> dict[str, int]:
        """What its rows speak of: the names of files beside the database, and how many bytes of each."""
        segments = self._query("SELECT segment, max(begins + size) FROM events WHERE segment > 0 GROUP BY segment")
        snapshots = self._query("SELECT number, size FROM snapshots")
        return {segment_name(first): end for first, end in segments} | {
            snapshot_name(number): size for number, size in snapshots
        }

    def forget_before_last_snapshot(self) -> None:
        """Keep only the newest snapshot and what came after it."""
        self._prune(kept=1)

    def _prune(self, kept: int = KEPT_SNAPSHOTS) -> None:
        numbers = self.snapshots()[-kept:]
        with self._transaction():
            self._database.execute("DELETE FROM snapshots WHERE number < ?", (numbers[0],))
            self._database.execute("DELETE FROM events WHERE number <= ?", (numbers[0],))
            self._database.execute("DELETE FROM outcomes WHERE number <= ?", (numbers[0],))
        segments = self._query("SELECT DISTINCT segment FROM events WHERE segment IS NOT NULL")
        used = {segment_name(segment) for (segment,) in segments} | {snapshot_name(n) for n in numbers}
        if self._segment is not None:
            used.add(segment_name(self._segment.first))
        remove_others(self.directory, used)

    def close(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self.applying.close()
        self._database.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # Files and SQL.

    def _open_segment(self) -> None:
        """Begin a new file of bodies at the next event; bytes of a crash that no row speaks of go with it."""
        try:
            opened = Segment(self.directory, self.last + 1)
        except OSError as error:
            raise unwritable(self.directory, error) from None
        if self._segment is not None:
            self._segment.close()
        self._segment = opened

    def _segment_for_more(self) -> Segment:
        """The open file of bodies, or another if that is full or its sync failed."""
        assert self._segment is not None, "the journal is not locked"
        if self._segment.end >= SEGMENT_BYTES or self._segment.sync_failed:
            self._open_segment()
        return self._segment

    def _query(self, sql: str, *values: object) -> list[Any]:
        with reading(self.directory):
            return self._database.execute(sql, values).fetchall()

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._database, self.directory)
