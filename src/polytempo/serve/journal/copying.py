"""Copies of a journal, taken while the server runs or not. A copy is what a crash at one event would have left."""

import hashlib
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from polytempo.core.errors import PassingError, UserError
from polytempo.serve.journal.files.database import connect, reading
from polytempo.serve.journal.files.store import FileStore
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import recorded_settings
from polytempo.serve.journal.stores import open_store
from polytempo.serve.journal.transfer import KEPT, transfer
from polytempo.serve.paths import DATABASE, INITIAL, PROXIES
from polytempo.serve.storage.address import journal_database
from polytempo.serve.storage.errors import DamagedError

TRIES = 5
"""The server may forget what is being copied; then everything is copied anew, so many times."""
CHUNK = 1 << 20
COPIED = re.compile(
    "|".join(map(re.escape, (DATABASE, INITIAL, PROXIES)))
    + r"|updates-[0-9]{12,}\.bodies|snapshot-[0-9]{12,}\.safetensors"
)
"""Names of the files that a copy has."""


@dataclass(frozen=True)
class JournalCopy:
    """What was copied."""

    event: int
    """Number of the last event in it."""
    settings: dict[str, Any]
    """Those that last for the life of the service."""
    sha256: dict[str, str]
    """Of each file, by its name, as it was read."""


@dataclass(frozen=True)
class Written:
    """A file that was written."""

    size: int
    sha256: str
    """Of the bytes that were handed over to the disk, whatever a reader is given there later."""


def copy_journal(source: Path, target: Path) -> JournalCopy:
    """Copy the journal as it is after one event, as files, wherever it lies. Nothing is read from ``target``, which may
    lie where others write."""
    if journal_database(source) is not None:
        target.mkdir(mode=0o700)
        return _copy_from_database(source, target)
    missing = ""
    for _ in range(TRIES):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(mode=0o700)
        with tempfile.TemporaryDirectory(prefix="polytempo-backup-") as own:
            _copy_database(source, Path(own))
            store = FileStore(Path(own))
            with closing(Journal(Path(own), store)) as journal:
                event, sizes, settings = journal.last, store.files(), recorded_settings(journal).lasting()
            sizes |= {name: (source / name).stat().st_size for name in KEPT if (source / name).exists()}
            try:
                sha256 = _copy_files(source, target, sizes)
            except FileNotFoundError as error:
                missing = error.filename
                continue
            sha256[DATABASE] = copy_file(Path(own) / DATABASE, target / DATABASE).sha256
            return JournalCopy(event, settings, sha256)
    raise UserError(
        f"{missing} was missing each of the {TRIES} times that the journal was copied. Either the journal is damaged, "
        "which `polytempo replay` would tell, or the server forgets old files too fast: try again when less goes on."
    )


def _copy_from_database(source: Path, target: Path) -> JournalCopy:
    with tempfile.TemporaryDirectory(prefix="polytempo-backup-") as name:
        own = Path(name)
        with closing(open_store(source)) as there, closing(FileStore(own)) as here:
            here.lock()
            event = transfer(there, here, there.about())
            sizes = here.files()
        sizes |= {name: (own / name).stat().st_size for name in KEPT if (own / name).exists()}
        with closing(Journal(own, FileStore(own))) as journal:
            settings = recorded_settings(journal).lasting()
        sha256 = _copy_files(own, target, sizes)
        sha256[DATABASE] = copy_file(own / DATABASE, target / DATABASE).sha256
        return JournalCopy(event, settings, sha256)


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
                f"Cannot copy the database to {target}: {error}. Make room there, or set TMPDIR, and try again."
            ) from None


def _copy_files(source: Path, target: Path, sizes: dict[str, int]) -> dict[str, str]:
    """So many bytes of each file. All are opened first: a file that the server removes meanwhile can still be read.
    Returns the SHA-256 of each."""
    sha256 = {}
    with ExitStack() as stack:
        opened = {name: stack.enter_context((source / name).open("rb")) for name in sizes}
        for name, file in opened.items():
            written = write_new(target / name, chunks_of(file, sizes[name]))
            if written.size < sizes[name]:
                raise DamagedError(source, int(Path(name).stem.rpartition("-")[2]), f"{name} is cut off")
            sha256[name] = written.sha256
    return sha256


def copy_file(source: Path, to: Path) -> Written:
    """Copy a file to a new one, which only its owner can read, and sync it."""
    with source.open("rb") as file:
        return write_new(to, chunks_of(file))


def chunks_of(file: IO[bytes], size: int | None = None) -> Iterator[bytes]:
    """What a file holds, or at most so many bytes of it."""
    left = size
    while chunk := file.read(CHUNK if left is None else min(CHUNK, left)):
        yield chunk
        left = None if left is None else left - len(chunk)


def write_new(path: Path, chunks: Iterable[bytes]) -> Written:
    """Write a new file, which only its owner can read, and sync it."""
    size, sha256 = 0, hashlib.sha256()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for chunk in chunks:
            size += file.write(chunk)
            sha256.update(chunk)
        file.flush()
        os.fsync(file.fileno())
    return Written(size, sha256.hexdigest())
