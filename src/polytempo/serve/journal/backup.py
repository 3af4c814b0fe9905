"""A copy of a service that can be kept elsewhere, made while the service runs or not, and a service made from it again.

    manifest.json               the event that the copy ends at, when and by which version it was made, a hash per file
    journal/                    the database, the bodies and snapshots that it names, the first model, the proxy sets
    access.json, service.toml   who may talk to the service (hashes of tokens only), and its settings

Keys and tokens are never copied. A copy is a journal as a crash at that event would have left it."""

import hashlib
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from pydantic import BaseModel, ValidationError

from polytempo.core.errors import PassingError, UserError
from polytempo.core.files import hand_over, sync_directory, write_bytes
from polytempo.serve.access.roster import ACCESS, Roster, with_tables
from polytempo.serve.journal.database import DATABASE, DamagedError, connect, reading
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import INITIAL, RENUMBERED_BY, open_service, settings_of
from polytempo.serve.journal.proxies import PROXIES
from polytempo.serve.process.running import JOURNAL
from polytempo.serve.server.operations import OPERATIONS
from polytempo.serve.state.events import Event
from polytempo.serve.state.settings import ServiceSettings

MANIFEST = "manifest.json"
BESIDE = (ACCESS, OPERATIONS)
"""Files of the service's directory that are copied too, if they are there."""
TRIES = 5
"""The server may forget what is being copied; then everything is copied anew, so many times."""
CHUNK = 1 << 20


class Manifest(BaseModel):
    """What a copy holds."""

    event: int
    """Number of the last event in it."""
    made: datetime
    polytempo: str
    """Version that made it."""
    settings: dict[str, Any] = {}
    """Those that last for the life of the service: ``polytempo serve`` has to be given the same."""
    sha256: dict[str, str]
    """Of each file, by its path in the copy."""


@dataclass(frozen=True)
class Restored:
    """A service made from a copy, before anybody starts it."""

    manifest: Manifest
    event: int
    """Number of the last event that was recovered."""
    digest: str
    """Of the state after it."""
    kept: list[str]
    """Files that the directory had already, and that were not taken from the copy."""


def back_up(directory: Path, to: Path) -> Manifest:
    """Copy the service in this directory, as it is after one event. A server that runs there is not disturbed. ``to``
    must not exist or be empty, and appears when the copy is whole and on disk."""
    if not Journal.exists(directory / JOURNAL):
        raise UserError(f"{directory} holds no service to back up. Expected the --dir of `polytempo serve`.")
    if to.exists() and not (to.is_dir() and not any(to.iterdir())):
        raise UserError(f"{to} exists already. Expected a new or an empty directory: give each backup its own.")
    with _in_plain_words(f"Cannot write a backup to {to}"):
        to.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
        try:
            event = _copy_journal(directory / JOURNAL, making / JOURNAL)
            for name in BESIDE:
                if (directory / name).exists():
                    _copy_whole(directory / name, making / name)
            manifest = Manifest(
                event=event,
                settings=_settings_in(making / JOURNAL).lasting(),
                made=datetime.now(UTC),
                polytempo=metadata.version("polytempo"),
                sha256={name: _sha256(path) for name, path in _files(making).items()},
            )
            _write(making / MANIFEST, [manifest.model_dump_json(indent=1).encode()])
            sync_directory(making / JOURNAL)
            sync_directory(making)
            making.rename(to)
            sync_directory(to.parent)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
    return manifest


def restore(backup: Path, directory: Path, lose_tail: bool = False) -> Restored:
    """Make a service from a copy, in a directory that has none. Its orders get new numbers: clients may hold tasks that
    were ordered after the copy was made, which are void now. What the directory has already (keys, tokens, the list of
    those who may talk to the service) stays. ``lose_tail`` is that of ``open_service``."""
    manifest = _checked(backup)
    # Some of its codes may have been used since.
    roster = with_tables(Roster.read(backup / ACCESS), codes={}) if ACCESS in manifest.sha256 else None
    target, making = directory / JOURNAL, directory / f"{JOURNAL}.restoring"
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{target} holds a journal already. Nothing was changed. Move it away, or choose another DIR.")
    with _in_plain_words(f"Cannot restore to {directory}"):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(making, ignore_errors=True)  # a restore that was interrupted
        try:
            making.mkdir(mode=0o700)
            for name in manifest.sha256:
                if name not in BESIDE:
                    _copy_whole(backup / name, making / Path(name).name)
            event, digest = _renumber(making, lose_tail)
            kept = [name for name in BESIDE if (directory / name).exists()]
            if roster is not None and ACCESS not in kept:
                roster.write(directory / ACCESS)
            if OPERATIONS in manifest.sha256 and OPERATIONS not in kept:
                write_bytes(directory / OPERATIONS, (backup / OPERATIONS).read_bytes(), 0o600, shared=True)
            for path in (making, *making.iterdir()):
                _hand_over(path, directory)
            making.rename(target)
            sync_directory(directory)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
    return Restored(manifest, event, digest, kept)


# The copy.


def _copy_journal(source: Path, target: Path) -> int:
    """The number of the last event that was copied."""
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


def _copy_whole(source: Path, to: Path) -> None:
    with source.open("rb") as file:
        _copy(file, to, os.fstat(file.fileno()).st_size)


def _copy(file: IO[bytes], to: Path, size: int) -> int:
    """The number of bytes that were there to copy."""

    def chunks() -> Iterator[bytes]:
        left = size
        while left and (chunk := file.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk

    return _write(to, chunks())


def _write(path: Path, chunks: Iterator[bytes] | list[bytes]) -> int:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        written = sum(file.write(chunk) for chunk in chunks)
        file.flush()
        os.fsync(file.fileno())
    return written


# And back.


def _checked(backup: Path) -> Manifest:
    """The manifest of a copy that is whole."""
    try:
        manifest = Manifest.model_validate_json((backup / MANIFEST).read_bytes())
    except FileNotFoundError:
        raise UserError(
            f"{backup} is no backup: it has no {MANIFEST}. Expected what `polytempo backup` made."
        ) from None
    except (OSError, ValidationError) as error:
        raise _damaged(backup, f"{MANIFEST} cannot be read ({error})") from None
    found = _files(backup)
    for name, expected in manifest.sha256.items():
        if name not in found:
            raise _damaged(backup, f"{name} is missing")
        if _sha256(found[name]) != expected:
            raise _damaged(backup, f"{name} is not what was written")
    return manifest


def _settings_in(journal_directory: Path) -> ServiceSettings:
    journal = Journal(journal_directory)
    try:
        return settings_of(journal)
    finally:
        journal.close()


def _renumber(journal_directory: Path, lose_tail: bool) -> tuple[int, str]:
    """Recover the state, and let orders be numbered from far ahead on. The last event before, and its digest."""
    opened = open_service(journal_directory, _settings_in(journal_directory), lose_tail)
    try:
        service, event, digest = opened.service, opened.journal.last, opened.service.digest()
        opened.journal.append([Event("renumbered", service.now, number=service.number + RENUMBERED_BY)])
    finally:
        opened.journal.close()
    return event, digest


def _hand_over(path: Path, directory: Path) -> None:
    opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        hand_over(opened, directory)
    finally:
        os.close(opened)


def _files(copy: Path) -> dict[str, Path]:
    """What a copy holds beside its manifest. Only names of files of ours: nothing else is ever read or written."""
    found = [path for path in (*copy.glob("*"), *copy.glob(f"{JOURNAL}/*")) if path.is_file()]
    names = {path.relative_to(copy).as_posix(): path for path in found}
    return {name: path for name, path in names.items() if name in BESIDE or name.startswith(f"{JOURNAL}/")}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(backup: Path, why: str) -> UserError:
    return UserError(f"The backup in {backup} is damaged: {why}. Nothing was changed. Take another backup.")


@contextmanager
def _in_plain_words(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{what}: {error.strerror} ({error.filename}). Choose another directory, or make room."
        ) from None
