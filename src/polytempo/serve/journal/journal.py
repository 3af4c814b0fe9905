"""The journal: every event, safe before anyone is told that it happened. Where it lies is its store's business."""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from polytempo.core.disk.files import make_directory
from polytempo.core.state import pack
from polytempo.serve.journal.applying import Applying
from polytempo.serve.journal.files.snapshot_files import remove_others
from polytempo.serve.journal.marks import Marks
from polytempo.serve.journal.rows import instead_of, pack_event, unpack_event
from polytempo.serve.journal.store import Snapshot, Store
from polytempo.serve.journal.stores import is_there, make_store, open_store
from polytempo.serve.paths import APPLYING, STATUS
from polytempo.serve.state.events import Event
from polytempo.serve.storage.errors import DamagedError, JournalError
from polytempo_client.model.schema import Schema

KEPT_SNAPSHOTS = 2
TIMELINE = "timeline"


class Journal:
    """One service's journal. Only one process at a time may open it for writing. ``directory`` is the journal's own, or
    where this machine notes what it knows of a journal that lies elsewhere."""

    def __init__(self, directory: Path, store: Store | None = None) -> None:
        self.directory = directory
        self.store = open_store(directory) if store is None else store
        self.marks = Marks()
        self.applying = Applying()
        self.about = self.store.about()
        self.last = 0
        """Number of the last event."""
        self.unsaved_events = 0
        """Since the last snapshot, ..."""
        self.unsaved_bytes = 0
        """... with their bodies."""
        self.snapshot_bytes = 0
        """Size of the newest snapshot."""
        self._confirmed = -1
        self._find_end()

    @property
    def name(self) -> str:
        """What messages call the place where it lies."""
        return self.store.name

    # Opening.

    @classmethod
    def begin(
        cls,
        directory: Path,
        about: dict[str, Any],
        state: dict[str, Any],
        files: Mapping[str, Callable[[Path], None]] | None = None,
        store: Store | None = None,
    ) -> "Journal":
        """A new journal: its first snapshot is the state before the first event. ``files`` are kept with it as they
        are."""
        journal = cls(directory, store or make_store(directory))
        try:
            journal.lock()
            for name, write in (files or {}).items():
                journal.store.keep_file(name, write)
            journal.describe(about)
            journal.snapshot(state)
        except BaseException:
            journal.close()
            raise
        return journal

    @staticmethod
    def exists(directory: Path) -> bool:
        """Is there a journal? One that a crash kept from getting its first snapshot has not begun."""
        if not is_there(directory):
            return False
        journal = Journal(directory)
        try:
            return bool(journal.snapshots())
        finally:
            journal.close()

    def lock(self) -> None:
        """Take the journal for writing."""
        self.store.lock()
        make_directory(self.directory, 0o700)
        self.applying = Applying(self.directory / APPLYING)
        self.applying.begin_epoch(self.store.epoch)
        self.look_again()  # another server may have written until a moment ago

    def look_again(self) -> None:
        """See what another server has written meanwhile."""
        self.about = self.store.about()
        self._find_end()

    def _find_end(self) -> None:
        found = self.store.snapshots()
        newest = found[-1].number if found else 0
        self.last, self.unsaved_bytes = self.store.end(newest)
        self.unsaved_events = self.last - newest
        self.snapshot_bytes = found[-1].size if found else 0

    def describe(self, about: dict[str, Any]) -> None:
        """What the service is: kept beside the events, so that a journal can be read on its own."""
        self.about = about
        self.store.describe(about)

    @property
    def timeline(self) -> str:
        """Another one after events were lost or erased: their numbers are used again, and mean something else."""
        return str(self.about.get(TIMELINE, ""))

    @cached_property
    def schema(self) -> Schema:
        known = self.about["schema"]
        shapes = tuple(map(tuple, known["shapes"]))
        return Schema(tuple(known["names"]), shapes, known["parameters"], known.get("frozen", ""))

    def file(self, name: str) -> AbstractContextManager[Path]:
        """A file that is kept with the journal and never changes."""
        return self.store.file(name)

    # Events.

    def append(self, events: Sequence[Event]) -> None:
        """Write the events; they are safe when this returns. If it raises, none of them has happened for this process.
        If it cannot tell whether they are safe, whoever starts next may find all of them."""
        packed = [pack_event(event, self.schema) for event in events]
        self.unsaved_bytes += self.store.append(packed, self.last, time.time(), self.marks)
        self._clear_marks()
        self._confirmed = self.last
        self.last += len(packed)
        self.unsaved_events += len(packed)

    def check_writable(self) -> None:
        """Raises if what could not be written last cannot be written now."""
        self.store.check_writable()

    def events(self, after: int, until: int | None = None) -> Iterator[tuple[int, Event]]:
        """The events behind a snapshot, with their numbers and without a gap. Void ones are left out; of a timer it
        stays that it is gone."""
        schema, expected = self.schema, after
        for row, body in self.store.rows(after, self.last if until is None else until):
            expected += 1
            if row.number != expected:  # pruned meanwhile, or lost
                raise DamagedError(self.name, expected, "it is missing")
            if row.void is not None or row.number in self.marks.void:
                if (instead := instead_of(row)) is not None:
                    yield row.number, instead
                continue
            if not row.is_intact(body):
                raise DamagedError(self.name, row.number, "its checksum is wrong")
            yield row.number, unpack_event(row, body, schema)

    def void(self, number: int, reason: str) -> None:
        """The strategy could not take this event: it is left out from now on. If the disk is full, the mark is made
        with the next events."""
        self.marks.void[number] = reason
        with suppress(JournalError):
            self.store.write_marks(self.marks)
            self._clear_marks()

    def voided(self) -> set[int]:
        """Numbers of the events that are left out, of those that the journal still holds."""
        return self.store.voided()

    def _clear_marks(self) -> None:
        """They are written."""
        if self.marks.about:
            self.about = self.about | self.marks.about
        self.marks.clear()

    def outcomes(self) -> dict[int, int]:
        """What events came to, where that is known."""
        return self.store.outcomes()

    def outcomes_between(self, after: int, until: int) -> dict[int, int]:
        """The same, of the events behind ``after`` up to ``until``."""
        return self.store.outcomes_between(after, until)

    def digests(self, after: int, until: int) -> dict[int, str]:
        """Digests of the states after events behind ``after`` up to ``until``, in order, where they were noted."""
        return {one.number: one.digest for one in self.store.snapshots() if one.digest and after < one.number <= until}

    def confirm(self) -> None:
        """Write down what is known of events that were applied, if another server wants to know."""
        if self.store.is_followed and (self._confirmed < self.last or self.marks.outcomes):
            self.store.write_marks(self.marks, self.last)
            self._confirmed = self.last
            self._clear_marks()

    def description_of(self, number: int) -> str:
        """What an event is, in words."""
        found = self.store.headline(number)
        if found is None:
            return "not in the journal"
        kind, client, detail = found
        return Event(kind, 0.0, client, key=json.loads(detail).get("key", "")).description

    def last_batch(self) -> int:
        """Number of the first event of those that were written with the last one."""
        batch = self.store.last_batch()
        return self.last + 1 if batch is None else batch

    def replace_tail(self, after: int, event: Event) -> None:
        """Forget the events after this one, in one step with putting another in their place: whoever starts next sees
        that something is missing. Records of those that were left out go with them: their numbers are used again."""
        left_out = (self.about | self.marks.about).get("left_out", [])
        self.marks.about["left_out"] = [row for row in left_out if row["event"] <= after]
        self.marks.about[TIMELINE] = new_timeline()
        row = pack_event(event, self.schema).row(after + 1, after + 1, time.time())
        self.store.replace_tail(after, row, self.marks)
        self._clear_marks()
        self._find_end()

    # Snapshots.

    def snapshot(self, state: dict[str, Any]) -> None:
        """Keep the state after the last event, and forget what is older than the oldest snapshot kept."""
        self.keep_snapshot(self.write_snapshot(self.last, *pack(state)))

    def write_snapshot(self, number: int, text: str, tensors: list[Tensor]) -> Snapshot:
        """The packed state after an event. Any thread may do this; the state counts when it is kept."""
        return self.store.write_snapshot(number, text, tensors)

    def add_snapshot(self, made: Snapshot) -> None:
        """From now on recovery begins there. Nothing is forgotten, so this is safe beside a server that is stuck."""
        self.store.add_snapshot(made)

    def keep_snapshot(self, made: Snapshot) -> None:
        """From now on recovery begins there; what is older than the oldest snapshot kept is forgotten."""
        self.add_snapshot(made)
        self._find_end()
        self._forget_before(KEPT_SNAPSHOTS)

    def snapshots(self) -> list[int]:
        """Numbers of the events after which the state was kept, oldest first."""
        return [one.number for one in self.store.snapshots()]

    def newest_snapshot(self) -> int | None:
        return max(self.snapshots(), default=None)

    def load_snapshot(self, number: int) -> dict[str, Any]:
        return self.store.load_snapshot(number)

    def forget_before_last_snapshot(self) -> None:
        """Keep only the newest snapshot and what came after it."""
        self._forget_before(1)

    def _forget_before(self, kept: int) -> None:
        self.store.forget_before(self.snapshots()[-kept:][0])

    def begin_anew(self, made: Snapshot, about: Mapping[str, Any]) -> None:
        """In one step, let this snapshot be all that the journal holds, and ``about`` be part of what the service
        is."""
        self.store.begin_anew(made, {**about, TIMELINE: new_timeline()})
        self.about = self.store.about()
        self._find_end()

    def scrub(self) -> None:
        """Let nothing be left of what the journal does not hold any more, down to the bytes."""
        remove_others(self.directory, (STATUS, f".{STATUS}.*"))
        self.store.scrub()

    def close(self, successor: str | None = None) -> None:
        """``successor``: the server that is to write from then on, where several share a store."""
        self.applying.close()
        self.store.close(successor)


def new_timeline() -> str:
    return secrets.token_hex(8)
