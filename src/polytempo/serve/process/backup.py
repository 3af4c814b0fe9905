"""A copy of a service that can be kept elsewhere, made while the service runs or not, and a service made from it again.

    manifest.json               the event that the copy ends at, when and by which version it was made, a hash per file
    journal/                    the database, the bodies and snapshots that it names, the first model, the proxy sets
    access.json, service.toml   who may talk to the service (hashes of tokens only), and its settings

Keys and tokens are never copied. A copy is a journal as a crash at that event would have left it."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from polytempo.core.disk.files import hand_over, make_directory, sync_directory, write_bytes
from polytempo.core.errors import UserError
from polytempo.serve.access.roster import Roster, with_tables
from polytempo.serve.journal.continuing import NO_CONSENT, Consent
from polytempo.serve.journal.copying import copy_file, copy_journal, renumber, write_new
from polytempo.serve.journal.opening import settings_in
from polytempo.serve.journal.store import Journal
from polytempo.serve.paths import ACCESS, JOURNAL, OPERATIONS

MANIFEST = "manifest.json"
BESIDE = (ACCESS, OPERATIONS)
"""Files of the service's directory that are copied too, if they are there."""


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
        make_directory(to.parent)
        making = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
        try:
            event = copy_journal(directory / JOURNAL, making / JOURNAL)
            for name in BESIDE:
                if (directory / name).exists():
                    copy_file(directory / name, making / name)
            manifest = Manifest(
                event=event,
                settings=settings_in(making / JOURNAL).lasting(),
                made=datetime.now(UTC),
                polytempo=metadata.version("polytempo"),
                sha256={name: _sha256(path) for name, path in _files(making).items()},
            )
            write_new(making / MANIFEST, [manifest.model_dump_json(indent=1).encode()])
            sync_directory(making / JOURNAL)
            sync_directory(making)
            making.rename(to)
            sync_directory(to.parent)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
    return manifest


def restore(backup: Path, directory: Path, consent: Consent = NO_CONSENT) -> Restored:
    """Make a service from a copy, in a directory that has none. Its orders get new numbers: clients may hold tasks that
    were ordered after the copy was made, which are void now. What the directory has already (keys, tokens, the list of
    those who may talk to the service) stays. ``consent`` is that of ``open_service``."""
    manifest = _checked(backup)
    # Some of its codes may have been used since.
    roster = with_tables(Roster.read(backup / ACCESS), codes={}) if ACCESS in manifest.sha256 else None
    target, making = directory / JOURNAL, directory / f"{JOURNAL}.restoring"
    if target.exists() and any(target.iterdir()):
        raise UserError(f"{target} holds a journal already. Nothing was changed. Move it away, or choose another DIR.")
    with _in_plain_words(f"Cannot restore to {directory}"):
        make_directory(directory, 0o700)
        shutil.rmtree(making, ignore_errors=True)  # a restore that was interrupted
        try:
            making.mkdir(mode=0o700)
            for name in manifest.sha256:
                if name not in BESIDE:
                    copy_file(backup / name, making / Path(name).name)
            event, digest = renumber(making, consent)
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
