"""Where a journal is kept: its events with their bodies, its snapshots, and what the service is. There are two kinds,
files with SQLite (``files``) and PostgreSQL (``postgres``). What both say in the same SQL is here."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from polytempo.serve.journal.marks import Marks, Statements, write_about
from polytempo.serve.journal.rows import INSERT, EventRow, PackedEvent
from polytempo.serve.state.events import Kind

NUMBERED = ("events", "outcomes", "snapshots")
"""Tables whose rows have an event's number."""


@dataclass(frozen=True)
class Snapshot:
    """A state that was written."""

    number: int
    """Of the event that it was taken after."""
    size: int
    crc: int
    """Of its bytes, which lie in a file ..."""
    blob: int = 0
    """... or, in a database, under this number."""
    digest: str = ""
    """Of the state, where somebody compares it."""


class Store(ABC):
    """The store of one journal. One process at a time may write, any may read. Errors are ``JournalError``."""

    def __init__(self, name: str) -> None:
        self.name = name
        """What messages call it."""
        self.is_followed = False
        """Does another server read along?"""

    # What each kind does in its own way.

    @abstractmethod
    def lock(self) -> None:
        """Take it for writing; TakenError if somebody else has. Bytes that no row speaks of may go."""

    @abstractmethod
    def beside(self) -> "Store":
        """The same store for another thread, with the same right to write."""

    @property
    def epoch(self) -> int:
        """How often the store was taken for writing so far, this time included; 0 where nobody counts."""
        return 0

    @abstractmethod
    def close(self, successor: str | None = None) -> None:
        """``successor``: the server that is to take it next, where several share it."""

    @abstractmethod
    def query(self, sql: str, *values: object) -> list[Any]: ...

    @abstractmethod
    def transaction(self, end: int | None = None, confirmed: int | None = None) -> AbstractContextManager[Statements]:
        """All that is said in it happens, or nothing. ``end``: the number of the last event from then on, where it
        changes. ``confirmed``: that of the last event that has been applied, for whoever reads along."""

    @abstractmethod
    def append(self, events: Sequence[PackedEvent], after: int, wall: float, marks: Marks) -> int:
        """Write the events behind number ``after``, at this time since 1970, and the marks. They are safe when this
        returns. If it raises, none of them has happened for this process. Returns the bytes that they take."""

    @abstractmethod
    def check_writable(self) -> None:
        """Raises if what could not be written last cannot be written now."""

    @abstractmethod
    def rows(self, after: int, until: int) -> Iterator[tuple[EventRow, bytearray | None]]:
        """The events behind ``after`` in order, void ones too, with their bodies."""

    @abstractmethod
    def write_snapshot(self, number: int, text: str, tensors: list[Tensor]) -> Snapshot:
        """The packed state after an event. Any thread may do this; it counts when it is added."""

    @abstractmethod
    def load_snapshot(self, number: int) -> dict[str, Any]: ...

    @abstractmethod
    def keep_file(self, name: str, write: Callable[[Path], None]) -> None:
        """Keep a file that never changes: ``write`` makes it."""

    @abstractmethod
    def file(self, name: str) -> AbstractContextManager[Path]:
        """Such a file, to read; FileNotFoundError if there is none."""

    @abstractmethod
    def remove_unused(self) -> None:
        """Remove bodies and snapshots that no row speaks of."""

    @abstractmethod
    def scrub(self) -> None:
        """Let nothing of what no row speaks of be left where the store lies, down to the bytes."""

    # Whole journals.

    @abstractmethod
    def at_one_moment(self) -> AbstractContextManager[None]:
        """What is read in it is what there was at one moment, whoever writes meanwhile."""

    @abstractmethod
    def take_in(self, rows: Iterator[tuple[EventRow, bytearray | None]]) -> None:
        """Hold these events of another store."""

    @abstractmethod
    def snapshot_pieces(self, snapshot: Snapshot) -> Iterator[bytes]:
        """The bytes of a snapshot."""

    @abstractmethod
    def take_in_snapshot(self, number: int, pieces: Iterator[bytes]) -> Snapshot:
        """A snapshot of another store."""

    def empty(self) -> None:
        """Hold nothing, as before a journal begins."""
        with self.transaction(0) as statements:
            for table in (*NUMBERED, "about"):
                statements.execute(f"DELETE FROM {table}")
        self.remove_unused()

    def begin_with(self, snapshots: Sequence[Snapshot], last: int) -> None:
        """From now on these snapshots count, and ``last`` is the last event."""
        with self.transaction(last) as statements:
            for snapshot in snapshots:
                self._insert_snapshot(statements, snapshot)

    # What the service is.

    def about(self) -> dict[str, Any]:
        return {name: json.loads(value) for name, value in self.query("SELECT name, value FROM about")}

    def describe(self, about: Mapping[str, Any]) -> None:
        with self.transaction() as statements:
            write_about(statements, about)

    # Events.

    def write_marks(self, marks: Marks, confirmed: int | None = None) -> None:
        """``confirmed``: the events up to this one have been applied."""
        with self.transaction(confirmed=confirmed) as statements:
            marks.write(statements)

    def end(self, newest_snapshot: int) -> tuple[int, int]:
        """The number of the last event, and the bytes of those behind the snapshot."""
        ((last, size),) = self.query(
            "SELECT max(number), CAST(sum(size + length(detail)) AS BIGINT) FROM events WHERE number > ?",
            newest_snapshot,
        )
        return last or newest_snapshot, size or 0

    def last_batch(self) -> int | None:
        """Number of the first event of those that were written with the last one."""
        rows = self.query("SELECT batch FROM events ORDER BY number DESC LIMIT 1")
        return rows[0][0] if rows else None

    def headline(self, number: int) -> tuple[Kind, int, str] | None:
        """Kind, client and detail of an event."""
        rows = self.query("SELECT kind, client, detail FROM events WHERE number = ?", number)
        return rows[0] if rows else None

    def voided(self) -> set[int]:
        return {number for (number,) in self.query("SELECT number FROM events WHERE void IS NOT NULL")}

    def outcomes(self) -> dict[int, int]:
        return dict(self.query("SELECT number, outcome FROM outcomes"))

    def outcomes_between(self, after: int, until: int) -> dict[int, int]:
        return dict(self.query("SELECT number, outcome FROM outcomes WHERE number > ? AND number <= ?", after, until))

    def replace_tail(self, after: int, event: EventRow, marks: Marks) -> None:
        """Forget the events behind ``after``, in one step with putting another in their place."""
        with self.transaction(event.number) as statements:
            marks.write(statements)
            for table in NUMBERED:
                statements.execute(f"DELETE FROM {table} WHERE number > ?", (after,))
            statements.execute(INSERT, event)

    # Snapshots.

    def snapshots(self) -> list[Snapshot]:
        """Those that count, oldest first."""
        return [Snapshot(*row) for row in self.query("SELECT number, size, crc FROM snapshots ORDER BY number")]

    def add_snapshot(self, made: Snapshot) -> None:
        """From now on recovery begins there, unless there is a newer one already: a server that was stuck may have come
        back, and made it."""
        with self.transaction() as statements:
            self._insert_snapshot(statements, made)

    def _insert_snapshot(self, statements: Statements, made: Snapshot) -> None:
        statements.execute(
            "INSERT INTO snapshots (number, size, crc) SELECT ?, ?, ? "
            "WHERE ? >= (SELECT coalesce(max(number), 0) FROM snapshots) "
            "ON CONFLICT (number) DO UPDATE SET size = excluded.size, crc = excluded.crc",
            (made.number, made.size, made.crc, made.number),
        )

    def forget_before(self, number: int) -> None:
        """Keep the snapshot with this number, and what came after it."""
        with self.transaction() as statements:
            statements.execute("DELETE FROM snapshots WHERE number < ?", (number,))
            statements.execute("DELETE FROM events WHERE number <= ?", (number,))
            statements.execute("DELETE FROM outcomes WHERE number <= ?", (number,))
        self.remove_unused()

    def begin_anew(self, made: Snapshot, about: Mapping[str, Any]) -> None:
        """In one step, let this snapshot be all that it holds, and ``about`` be part of what the service is."""
        with self.transaction(made.number) as statements:
            for table in NUMBERED:
                statements.execute(f"DELETE FROM {table}")
            self._insert_snapshot(statements, made)
            write_about(statements, about)
