"""A journal in a directory:

    journal.sqlite              events in order (WAL, fsync), and what the service is (its configuration)
    updates-NUMBER.bodies       updates of clients, one safetensors body behind the other, from that event on;
                                small ones lie in their rows, which saves a sync
    snapshot-NUMBER.safetensors the state after that event

``append`` writes the bodies and syncs them, then commits the rows; a row never speaks of bytes that are not safe. What
a crash leaves behind the last row is forgotten.

A commit whose sync fails is in doubt. SQLite rolls it back, but its rows lie in the write-ahead log: whoever opens the
database after a kill finds them. They count until another transaction takes their place there. Until then their bodies
stay, and events that were refused may turn out to have happened: clients try again, and a repeat is answered."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

from polytempo.core.disk.files import make_directory
from polytempo.core.errors import UserError
from polytempo.core.state import save_packed
from polytempo.serve.journal.files.database import (
    connect,
    is_full,
    reading,
    transaction,
    unwritable,
    write_log_again,
)
from polytempo.serve.journal.files.segments import SEGMENT_BYTES, Segment, body_of, segment_name, set_aside
from polytempo.serve.journal.files.snapshot_files import (
    LEFT_BEHIND,
    UNUSED,
    read_snapshot,
    remove_others,
    snapshot_name,
    snapshot_of,
)
from polytempo.serve.journal.marks import Marks, Statements
from polytempo.serve.journal.rows import COLUMNS, INSERT, EventRow, PackedEvent
from polytempo.serve.journal.store import Snapshot, Store
from polytempo.serve.paths import LOCK
from polytempo.serve.storage.errors import DamagedError, JournalError, TakenError
from polytempo_client.disk.files import sync_directory
from polytempo_client.disk.locks import LockedError, take

SMALL_BYTES = 32 << 10
"""Bodies up to this size lie in their rows."""
CHUNK = 1 << 20
BRIEFLY = 1.0
"""Seconds to wait for the lock: whoever opens a journal that was not closed holds it for a moment."""


class FileStore(Store):
    """The files of one journal."""

    def __init__(self, directory: Path) -> None:
        super().__init__(str(directory))
        self.directory = directory
        self._lock: int | None = None
        self._segment: Segment | None = None
        self._failed_bytes = 0  # of the last events that could not be written
        self._doubtful_from: int | None = None  # where bodies of rows in doubt begin, in the open segment
        self._end = 0  # the last event, for whoever writes
        self._database = connect(directory)

    @classmethod
    def make(cls, directory: Path) -> "FileStore":
        """Of a journal that begins. The directory need not be there."""
        try:
            make_directory(directory, 0o700)
        except OSError as error:
            raise _no_place(directory, error) from None
        return cls(directory)

    def lock(self) -> None:
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
        newest = self.snapshots()
        self._end, _ = self.end(newest[-1].number if newest else 0)
        self._open_segment()

    def beside(self) -> "FileStore":
        return FileStore(self.directory)

    def close(self, successor: str | None = None) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None
        self._database.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def query(self, sql: str, *values: object) -> list[Any]:
        with reading(self.directory):
            return self._database.execute(sql, values).fetchall()

    @contextmanager
    def transaction(self, end: int | None = None, confirmed: int | None = None) -> Iterator[Statements]:
        with transaction(self._database, self.directory):
            yield self._database
        if end is not None:
            self._end = end

    # Events.

    def append(self, events: Sequence[PackedEvent], after: int, wall: float, marks: Marks) -> int:
        """If it raises, none of the events has happened for this process; if the process is killed before the next
        transaction, whoever starts next may find all of them."""
        self._settle()
        segment = self._segment_for_more()
        began, batch = segment.end, after + 1
        try:
            rows = [self._row(one, batch + i, batch, wall, segment) for i, one in enumerate(events)]
            if segment.end > began:
                segment.sync()
            with transaction(self._database, self.directory):
                marks.write(self._database)
                self._database.executemany(INSERT, rows)
        except (OSError, JournalError) as error:
            if isinstance(error, OSError) or is_full(error.__cause__):
                segment.cut(began)
            else:
                self._doubtful_from = began
            self._failed_bytes = sum(one.size for one in events)
            raise unwritable(self.directory, error) from error
        self._end = after + len(rows)
        return sum(row.size + len(row.detail) for row in rows)

    def _row(self, packed: PackedEvent, number: int, batch: int, wall: float, segment: Segment) -> EventRow:
        """The event's row; a large body is appended to the segment."""
        if packed.size <= SMALL_BYTES:
            return packed.row(number, batch, wall)
        return packed.row(number, batch, wall, segment.first, segment.append(packed.body, packed.size))

    def _settle(self) -> None:
        """End the doubt about the last commit: another one takes its place in the write-ahead log."""
        if self._doubtful_from is not None:
            assert self._segment is not None, "the journal is not locked"
            self.describe(self.about())
            self._segment.cut(self._doubtful_from)
            self._doubtful_from = None

    def check_writable(self) -> None:
        self._settle()
        segment = self._segment_for_more()
        try:
            segment.check_room(self._failed_bytes)
        except OSError as error:
            raise unwritable(self.directory, error) from error
        self.describe(self.about())

    def rows(self, after: int, until: int) -> Iterator[tuple[EventRow, bytearray | None]]:
        with reading(self.directory):
            cursor = self._database.execute(
                f"SELECT {COLUMNS} FROM events WHERE number > ? AND number <= ? ORDER BY number", (after, until)
            )
            for row in map(EventRow._make, cursor):
                yield row, body_of(row, self.directory)

    def replace_tail(self, after: int, event: EventRow, marks: Marks) -> None:
        """Bodies that are lost stay in files that end in ``.lost``."""
        lost = self.query("SELECT DISTINCT segment FROM events WHERE number > ? AND segment > ?", after, after)
        super().replace_tail(after, event, marks)
        set_aside(self.directory, [segment for (segment,) in lost])
        self._open_segment()

    # Snapshots.

    def write_snapshot(self, number: int, text: str, tensors: list[Tensor]) -> Snapshot:
        try:
            save_packed(text, tensors, self.directory / snapshot_name(number), 0o600)
            return snapshot_of(self.directory, number)
        except OSError as error:
            raise unwritable(self.directory, error) from error

    def at_one_moment(self) -> AbstractContextManager[None]:
        """Whoever reads everything has taken the store for writing."""
        return nullcontext()

    def take_in(self, rows: Iterator[tuple[EventRow, bytearray | None]]) -> None:
        segment = self._segment_for_more()
        try:
            with self.transaction() as statements:
                for row, body in rows:
                    statements.execute(INSERT, self._placed(row, body, segment))
                segment.sync()
        except OSError as error:
            raise unwritable(self.directory, error) from error

    def _placed(self, row: EventRow, body: bytearray | None, segment: Segment) -> EventRow:
        """The row with its body, as this store keeps it."""
        if body is None or len(body) <= SMALL_BYTES:
            return row._replace(body=body, segment=None, begins=None)
        return row._replace(body=None, segment=segment.first, begins=segment.append([body], len(body)))

    def snapshot_pieces(self, snapshot: Snapshot) -> Iterator[bytes]:
        try:
            with (self.directory / snapshot_name(snapshot.number)).open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk
        except OSError as error:
            raise DamagedError(self.name, snapshot.number, error.strerror or str(error)) from None

    def take_in_snapshot(self, number: int, pieces: Iterator[bytes]) -> Snapshot:
        path = self.directory / snapshot_name(number)
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            sync_directory(self.directory)
            return snapshot_of(self.directory, number)
        except OSError as error:
            raise unwritable(self.directory, error) from error

    def load_snapshot(self, number: int) -> dict[str, Any]:
        return read_snapshot(next(one for one in self.snapshots() if one.number == number), self.directory)

    def add_snapshot(self, made: Snapshot) -> None:
        begins = not self.snapshots()
        super().add_snapshot(made)
        if begins:
            # What the service is now lies in the database itself: damage to the write-ahead log can only cost events.
            self.query("PRAGMA wal_checkpoint(FULL)")

    def begin_anew(self, made: Snapshot, about: Mapping[str, Any]) -> None:
        self._database.execute("PRAGMA secure_delete = ON")
        super().begin_anew(made, about)

    # Files.

    def keep_file(self, name: str, write: Callable[[Path], None]) -> None:
        try:
            write(self.directory / name)
        except OSError as error:
            raise _no_place(self.directory, error) from None

    @contextmanager
    def file(self, name: str) -> Iterator[Path]:
        yield self.directory / name

    def files(self) -> dict[str, int]:
        """What its rows speak of: the names of files beside the database, and how many bytes of each."""
        segments = self.query("SELECT segment, max(begins + size) FROM events WHERE segment > 0 GROUP BY segment")
        snapshots = {snapshot_name(one.number): one.size for one in self.snapshots()}
        return {segment_name(first): end for first, end in segments} | snapshots

    def remove_unused(self) -> None:
        used = set(self.files())
        if self._segment is not None:
            used.add(segment_name(self._segment.first))
        try:
            remove_others(self.directory, UNUSED, used)
        except OSError as error:
            raise unwritable(self.directory, error) from error

    def scrub(self) -> None:
        try:
            remove_others(self.directory, LEFT_BEHIND, set(self.files()))
            sync_directory(self.directory)
        except OSError as error:
            raise unwritable(self.directory, error) from error
        with reading(self.directory):
            self._database.execute("VACUUM")  # writes every page anew; those of deleted rows are gone
            busy, _, _ = self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise TakenError(
                f"Somebody is reading the journal in {self.directory}. Run the same command again after that."
            )

    def _open_segment(self) -> None:
        """Begin a new file of bodies at the next event; bytes of a crash that no row speaks of go with it."""
        try:
            opened = Segment(self.directory, self._end + 1)
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


def _no_place(directory: Path, error: OSError) -> UserError:
    return UserError(f"Cannot keep a journal in {directory}: {error.strerror}. Choose another --dir.")
