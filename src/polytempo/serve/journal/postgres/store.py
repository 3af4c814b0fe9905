"""A journal in a PostgreSQL database. An append is one transaction: the bodies, what was found out about earlier
events, the rows, and at its end the fence, with which it fails if another server has taken the lead
(``storage/lease.py``).

A connection that breaks in a transaction leaves it in doubt whether that was committed. Nothing more is written from
the state that the process has then: whoever leads next reads what there is."""

import socket
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import psycopg
from torch import Tensor

from polytempo.core.state import digest, loads, packed_pieces, unpack
from polytempo.serve.journal.marks import Marks
from polytempo.serve.journal.rows import COLUMNS, INSERT, EventRow, PackedEvent
from polytempo.serve.journal.store import Snapshot, Store
from polytempo.serve.storage.address import PostgresAddress
from polytempo.serve.storage.blobs import PART_BYTES, Buffer, new_blob, read_blob, write_blob
from polytempo.serve.storage.database import (
    DatabaseStatements,
    connect,
    in_words,
    is_broken,
    query,
    roll_back,
    told_in_words,
)
from polytempo.serve.storage.errors import DamagedError, LostLeadError
from polytempo.serve.storage.leading import LEASE_SECONDS, Lead, new_holder
from polytempo.serve.storage.lease import fence, fence_confirmed, fence_end
from polytempo.serve.storage.notices import NOTIFY, channel_of_events

PAGE_ROWS, PAGE_BYTES = 500, 16 << 20
"""Events that are read at a time, at most."""
PAGE = f"""
SELECT {COLUMNS} FROM (
    SELECT *, sum(size) OVER (ORDER BY number) - size AS before FROM (
        SELECT * FROM events WHERE number > ? AND number <= ? ORDER BY number LIMIT {PAGE_ROWS}) AS next) AS page
WHERE before < {PAGE_BYTES} ORDER BY number
"""
TABLES = ("about", "events", "outcomes", "snapshots", "parts")


class PostgresStore(Store):
    """The tables of one journal. ``holder`` is what the process calls itself when it leads, ``lease_seconds`` for how
    long it may be silent then."""

    def __init__(
        self, address: PostgresAddress, holder: str | None = None, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        super().__init__(str(address))
        self.address = address
        self.holder = holder or new_holder()
        self.lease_seconds = lease_seconds
        self.lead: Lead | None = None
        self._shares_lead = False
        self._failed_bytes = 0  # of the last events that could not be written
        self._connection = connect(address, self.holder)

    def lock(self) -> None:
        self.lead = Lead(self.address, self.holder, self.lease_seconds)

    def beside(self) -> "PostgresStore":
        other = PostgresStore(self.address, self.holder, self.lease_seconds)
        other.lead, other._shares_lead = self.lead, True
        return other

    @property
    def epoch(self) -> int:
        return 0 if self.lead is None else self.lead.epoch

    def close(self, successor: str | None = None) -> None:
        if self.lead is not None and not self._shares_lead:
            self.lead.give_up(successor)
        self._connection.close()

    def cut(self) -> None:
        """End what waits for the database, on whatever thread."""
        with suppress(OSError, psycopg.Error), socket.fromfd(self._connection.fileno(), -1, -1) as connected:
            connected.shutdown(socket.SHUT_RDWR)

    def query(self, sql: str, *values: object) -> list[Any]:
        """Whoever leads reads over the connection on which it writes, or leads no more."""
        if is_broken(self._connection) and self.lead is None:
            self._connection = connect(self.address, self.holder)
        try:
            return query(self._connection, sql, values)
        except psycopg.Error as error:
            lost = self.lead is not None and is_broken(self._connection)
            raise self._lost(error) if lost else in_words(self.address, error) from error

    # Writing.

    @contextmanager
    def _open_transaction(self) -> Iterator[tuple[DatabaseStatements, int]]:
        """What is said is sent at once, with the commit behind it. With the number of the epoch."""
        assert self.lead is not None, "the journal is not locked"
        connection = self._connection
        try:
            with connection.pipeline():
                connection.execute("BEGIN")
                yield DatabaseStatements(connection), self.lead.epoch
                connection.execute("COMMIT")
        except BaseException as error:
            broken = is_broken(connection)
            roll_back(connection)
            if isinstance(error, psycopg.Error):
                raise self._lost(error) if broken else in_words(self.address, error) from error
            raise

    def _lost(self, error: psycopg.Error) -> LostLeadError:
        return LostLeadError(
            f"The connection to the database was lost while this server led. {in_words(self.address, error)}"
        )

    @contextmanager
    def transaction(self, end: int | None = None, confirmed: int | None = None) -> Iterator[DatabaseStatements]:
        with self._open_transaction() as (statements, epoch):
            yield statements
            if confirmed is not None:
                fence_confirmed(statements, epoch, confirmed)
            elif end is None:
                fence(statements, epoch)
            else:
                fence_end(statements, epoch, end, end)

    def append(self, events: Sequence[PackedEvent], after: int, wall: float, marks: Marks) -> int:
        batch = after + 1
        large = {i: new_blob() for i, packed in enumerate(events) if packed.size > PART_BYTES}
        rows = [
            packed.row(batch + i, batch, wall, large.get(i), 0 if i in large else None)
            for i, packed in enumerate(events)
        ]
        self._failed_bytes = sum(packed.size for packed in events)
        with self._open_transaction() as (statements, epoch):
            for i, blob in large.items():
                write_blob(statements, blob, events[i].body)
            marks.write(statements)
            statements.executemany(INSERT, rows)
            fence_end(statements, epoch, after + len(rows), confirmed=after, behind=after)
            if self.is_followed:
                statements.execute(NOTIFY, (channel_of_events(self.address),))
        self._failed_bytes = 0
        return sum(row.size + len(row.detail) for row in rows)

    def check_writable(self) -> None:
        """Writes as many bytes as could not be written, and takes them back."""
        assert self.lead is not None, "the journal is not locked"
        with told_in_words(self.address):
            if is_broken(self._connection):
                raise LostLeadError(f"The database {self.address} was lost.")
            with self._connection.transaction(force_rollback=True):
                write_blob(DatabaseStatements(self._connection), new_blob(), [bytes(self._failed_bytes)])
        self.describe(self.about())

    # Reading.

    def rows(self, after: int, until: int) -> Iterator[tuple[EventRow, bytearray | None]]:
        while after < until:
            page = [EventRow._make(row) for row in self.query(PAGE, after, until)]
            if not page:
                return
            for row in page:
                yield row, self._body_of(row)
            after = page[-1].number

    def _body_of(self, row: EventRow) -> bytearray | None:
        if row.segment is None:
            return None if row.body is None else bytearray(row.body)
        body = self._read_blob(row.segment)
        if len(body) != row.size:
            raise DamagedError(self.name, row.number, "its body is cut off")
        return body

    def _read_blob(self, blob: int) -> bytearray:
        content = bytearray()
        with told_in_words(self.address):
            for part in read_blob(self._connection, blob):
                content += part
        return content

    # Whole journals.

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        with told_in_words(self.address):
            self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            try:
                yield
            finally:
                roll_back(self._connection)

    def take_in(self, rows: Iterator[tuple[EventRow, bytearray | None]]) -> None:
        """A page at a time: nothing of it counts before the journal has begun."""
        page: list[tuple[EventRow, bytearray | None]] = []
        for row, body in rows:
            page.append((row, body))
            if len(page) >= PAGE_ROWS or sum(len(one or b"") for _, one in page) >= PAGE_BYTES:
                self._take_in_page(page)
                page = []
        self._take_in_page(page)

    def _take_in_page(self, page: Sequence[tuple[EventRow, bytearray | None]]) -> None:
        with self.transaction() as statements:
            for row, body in page:
                if body is None or len(body) <= PART_BYTES:
                    placed = row._replace(body=body, segment=None, begins=None)
                else:
                    blob = new_blob()
                    write_blob(statements, blob, [body])
                    placed = row._replace(body=None, segment=blob, begins=0)
                statements.execute(INSERT, placed)

    def snapshot_pieces(self, snapshot: Snapshot) -> Iterator[bytes]:
        with told_in_words(self.address):
            yield from read_blob(self._connection, snapshot.blob)

    def take_in_snapshot(self, number: int, pieces: Iterator[Buffer]) -> Snapshot:
        blob, size, crc = new_blob(), 0, 0

        def counted() -> Iterator[Buffer]:
            nonlocal size, crc
            for piece in pieces:
                size, crc = size + len(piece), zlib.crc32(piece, crc)
                yield piece

        self._write_beside(blob, counted())
        return Snapshot(number, size, crc, blob)

    # Snapshots.

    def write_snapshot(self, number: int, text: str, tensors: list[Tensor]) -> Snapshot:
        """With its digest, where another server may compare its own state."""
        made = self.take_in_snapshot(number, iter(packed_pieces(text, tensors)))
        return replace(made, digest=digest(unpack(text, tensors))) if self.is_followed else made

    def _write_beside(self, blob: int, pieces: Iterator[Buffer]) -> None:
        """Over a connection of its own: others go on writing events."""
        with connect(self.address, self.holder) as connection, told_in_words(self.address), connection.transaction():
            write_blob(DatabaseStatements(connection), blob, pieces)

    def snapshots(self) -> list[Snapshot]:
        rows = self.query("SELECT number, size, crc, blob, coalesce(digest, '') FROM snapshots ORDER BY number")
        return [Snapshot(*row) for row in rows]

    def _insert_snapshot(self, statements: Any, made: Snapshot) -> None:
        statements.execute(
            "INSERT INTO snapshots (number, size, crc, blob, digest) "
            "SELECT ?::bigint, ?::bigint, ?::bigint, ?::bigint, ?::text "
            "WHERE ? >= (SELECT coalesce(max(number), 0) FROM snapshots) ON CONFLICT (number) DO UPDATE "
            "SET size = excluded.size, crc = excluded.crc, blob = excluded.blob, digest = excluded.digest",
            (made.number, made.size, made.crc, made.blob, made.digest, made.number),
        )

    def load_snapshot(self, number: int) -> dict[str, Any]:
        snapshot = next(one for one in self.snapshots() if one.number == number)
        content = self._read_blob(snapshot.blob)
        if len(content) != snapshot.size or zlib.crc32(content) != snapshot.crc:
            raise DamagedError(self.name, number, "the snapshot behind it has changed since it was written")
        try:
            return cast("dict[str, Any]", loads(content))
        except (LookupError, TypeError, ValueError) as error:
            raise DamagedError(self.name, number, f"the snapshot behind it is not understood: {error!r}") from None

    def begin_anew(self, made: Snapshot, about: Mapping[str, Any]) -> None:
        super().begin_anew(made, about)
        self.remove_unused()

    # Files.

    def keep_file(self, name: str, write: Callable[[Path], None]) -> None:
        with tempfile.TemporaryDirectory(prefix="polytempo-") as folder:
            write(Path(folder) / name)
            content = (Path(folder) / name).read_bytes()
        blob = new_blob()
        with self.transaction() as statements:
            write_blob(cast(DatabaseStatements, statements), blob, [content])
            statements.execute(
                "INSERT INTO files (name, blob) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET blob = excluded.blob",
                (name, blob),
            )

    @contextmanager
    def file(self, name: str) -> Iterator[Path]:
        found = self.query("SELECT blob FROM files WHERE name = ?", name)
        if not found:
            raise FileNotFoundError(2, "it is missing", name)
        with tempfile.TemporaryDirectory(prefix="polytempo-") as folder:
            path = Path(folder) / name
            path.write_bytes(self._read_blob(found[0][0]))
            yield path

    def remove_unused(self) -> None:
        with self.transaction() as statements:
            statements.execute(
                "DELETE FROM parts WHERE blob NOT IN (SELECT segment FROM events WHERE segment IS NOT NULL "
                "UNION SELECT blob FROM snapshots UNION SELECT blob FROM files)"
            )

    def scrub(self) -> None:
        with told_in_words(self.address):
            for table in TABLES:
                self._connection.execute(f"VACUUM (FULL) {table}".encode())
