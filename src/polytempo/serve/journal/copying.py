"""Copies of a journal, taken while the server runs or not. A copy is what a crash at one event would have left."""

import os
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import IO

from polytempo.core.errors import PassingError, UserError
from polytempo.serve.journal.continuing import RENUMBERED_BY, Consent
from polytempo.serve.journal.database import DamagedError, connect, reading
from polytempo.serve.journal.opening import open_service, settings_in
from polytempo.serve.journal.store import Journal
from polytempo.serve.paths import DATABASE, INITIAL, PROXIES
from polytempo.serve.state.events import Event

TRIES = 5
"""The server may forget what is being copied; then everything is copied anew, so many times."""
CHUNK = 1 << 20


def copy_journal(source: Path, target: Path) -> int:
    """Copy the journal as it is after one event. Returns that event's number."""
    missing = ""
    for _ in range(TRIES):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(mode=0o700)
        _copy_database(source, target)
        journal = Journal(target)
        event, sizes = journal.last, journal.files()
        journal.close()
        sizes |= {name: (source / name).stat().st_size for name in (INITIAL, PROXIES) if (source / name).exists()}
        try:
            _copy_files(source, target, sizes)
            return event
        except FileNotFoundError as error:
            missing = error.filename
    raise UserError(
        f"{missing} was missing each of the {TRIES} times that the journal was copied. Either the journal is damaged, "
        "which `polytempo replay` would tell, or the server forgets old files too fast: try again when less goes on."
    )


def _copy_database(source: Path, target: Path) -> None:
    os.close(os.open(target / DATABASE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    with (
        reading(source),
        closing(connect(source)) as live,
        closing(sqlite3.connect(target / DATABASE)) as copy,
    ):
        try:
            live.backup(copy)  # what is committed at one moment; a server goes on writing
        except sqlite3.OperationalError as error:
            raise PassingError(
                f"Cannot write the backup to {target.parent}: {error}. Make room, and try again."
            ) from None


def _copy_files(source: Path, target: Path, sizes: dict[str, int]) -> None:
    """So many bytes of each file. All are opened first: a file that the server removes meanwhile can still be read."""
    with ExitStack() as stack:
        opened = {name: stack.enter_context((source / name).open("rb")) for name in sizes}
        for name, file in opened.items():
            if _copy(file, target / name, sizes[name]) < sizes[name]:
                raise DamagedError(source, int(Path(name).stem.rpartition("-")[2]), f"{name} is cut off")


def copy_file(source: Path, to: Path) -> None:
    """Copy a file to a new one, which only its owner can read, and sync it."""
    with source.open("rb") as file:
        _copy(file, to, os.fstat(file.fileno()).st_size)


def _copy(file: IO[bytes], to: Path, size: int) -> int:
    """The number of bytes that were there to copy."""

    def chunks() -> Iterator[bytes]:
        left = size
        while left and (chunk := file.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk

    return write_new(to, chunks())


def write_new(path: Path, chunks: Iterable[bytes]) -> int:
    """Write a new file, which only its owner can read, and sync it. Returns its size."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        written = sum(file.write(chunk) for chunk in chunks)
        file.flush()
        os.fsync(file.fileno())
    return written


def renumber(journal_directory: Path, consent: Consent) -> tuple[int, str]:
    """Recover the state, and let orders be numbered from far ahead on. The last event before, and its digest."""
    opened = open_service(journal_directory, settings_in(journal_directory), consent)
    try:
        service, event, digest = opened.service, opened.journal.last, opened.service.digest()
        opened.journal.append([Event("renumbered", service.now, number=service.number + RENUMBERED_BY)])
    finally:
        opened.journal.close()
    return event, digest
