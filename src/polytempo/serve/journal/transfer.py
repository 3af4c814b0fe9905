"""A whole journal from one store to another, byte for byte: bodies, snapshots and files are not understood on the way,
so that no code of the user's runs."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from polytempo.serve.journal.marks import Marks
from polytempo.serve.journal.rows import EventRow
from polytempo.serve.journal.store import Snapshot, Store
from polytempo.serve.paths import INITIAL, PROXIES
from polytempo.serve.storage.errors import DamagedError, JournalError
from polytempo_client.disk.files import write_bytes

KEPT = (INITIAL, PROXIES)
"""Files that a journal may keep."""


def transfer(source: Store, target: Store, about: dict[str, Any]) -> int:
    """Let ``target``, which is taken for writing, hold what ``source`` does at one moment; ``about`` is what the
    service is said to be there. It has begun when its snapshots count, which is the last step. Returns the number of
    the last event."""
    with source.at_one_moment():
        snapshots = source.snapshots()
        if not snapshots:
            raise JournalError(f"The journal in {source.name} has not begun: there is nothing to copy.")
        target.empty()
        target.describe(about)
        for name in KEPT:
            _transfer_file(source, target, name)
        last, _ = source.end(snapshots[-1].number)
        target.take_in(_intact_rows(source, snapshots[0].number, last))
        marks = Marks()
        marks.outcomes = source.outcomes()
        target.write_marks(marks)
        target.begin_with([_transfer_snapshot(source, target, one) for one in snapshots], last)
    return last


def _transfer_file(source: Store, target: Store, name: str) -> None:
    try:
        with source.file(name) as path:
            content = path.read_bytes()
    except FileNotFoundError:
        return
    target.keep_file(name, partial(_write, content=content))


def _write(path: Path, content: bytes) -> None:
    write_bytes(path, content, 0o600)


def _intact_rows(source: Store, after: int, last: int) -> Iterator[tuple[EventRow, bytearray | None]]:
    for row, body in source.rows(after, last):
        if not row.is_intact(body):
            raise DamagedError(source.name, row.number, "its checksum is wrong")
        yield row, body


def _transfer_snapshot(source: Store, target: Store, snapshot: Snapshot) -> Snapshot:
    made = target.take_in_snapshot(snapshot.number, source.snapshot_pieces(snapshot))
    if (made.size, made.crc) != (snapshot.size, snapshot.crc):
        raise DamagedError(source.name, snapshot.number, "the snapshot behind it has changed since it was written")
    return made
