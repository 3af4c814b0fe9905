"""A copy of a service that can be kept elsewhere, made while the service runs or not, and a service made from it again.

    manifest.json               the event that the copy ends at, when and by which version it was made, a hash per file
    manifest.sig                the signature of the manifest's bytes (Ed25519), if the service has a key for it
    journal/                    the database, the bodies and snapshots that it names, the first model, the proxy sets
    access.json, service.toml   who may talk to the service (hashes of tokens only), and its settings

Keys and tokens are never copied. A copy is a journal as a crash at that event would have left it. Where it lies others
may write: nothing is read from there to be signed, and nothing is believed there that is not signed."""

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from polytempo.core.disk.files import hand_over_folder, make_directory
from polytempo.core.disk.new_directory import new_directory
from polytempo.core.errors import UserError
from polytempo.core.registry import check_imports
from polytempo.core.validation import complaint
from polytempo.serve.access.roster import Roster, with_tables
from polytempo.serve.access.signing import backup_signer, backup_verifier, is_signed_by
from polytempo.serve.journal.continuing import NO_CONSENT, RENUMBERED_BY, Consent
from polytempo.serve.journal.copying import COPIED, copy_journal, write_new
from polytempo.serve.journal.files.store import FileStore
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import existing_journal, open_service, recorded_settings
from polytempo.serve.journal.settings import ServiceSettings
from polytempo.serve.journal.snapshots import Snapshots
from polytempo.serve.journal.stores import make_store
from polytempo.serve.journal.transfer import transfer
from polytempo.serve.paths import ACCESS, BACKUP_PUBLIC_KEY, JOURNAL, OPERATIONS, STORE
from polytempo.serve.process.backup_files import copy_checked, damaged, read_checked, read_small
from polytempo.serve.state.events import Event
from polytempo.serve.storage.address import database_of
from polytempo.serve.storage.documents import documents_of
from polytempo_client.disk.files import sync_directory

MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
LARGEST_MANIFEST, LARGEST_SIGNATURE = 16 << 20, 64
"""Bytes. A manifest has about 120 for each file."""
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
class BackedUp:
    """A copy that was made."""

    manifest: Manifest
    signed: bool


@dataclass(frozen=True)
class Restored:
    """A service made from a copy, before anybody starts it."""

    manifest: Manifest
    settings: ServiceSettings
    """Those that its journal was begun with."""
    event: int
    """Number of the last event that was recovered."""
    digest: str
    """Of the state after it."""
    kept: list[str]
    """Files that the directory had already, and that were not taken from the copy."""


def back_up(directory: Path, to: Path) -> BackedUp:
    """Copy the service in this directory, as it is after one event. A server that runs there is not disturbed. ``to``
    must not exist or be empty, and appears when the copy is whole and on disk. It is signed if the directory has a key
    for it."""
    if not Journal.exists(directory / JOURNAL):
        raise UserError(f"{directory} holds no service to back up. Expected the --dir of `polytempo serve`.")
    signer = backup_signer(directory)
    with new_directory(to) as making:
        manifest = _copy(directory, making)
        content = manifest.model_dump_json(indent=1).encode()
        write_new(making / MANIFEST, [content])
        if signer is not None:
            write_new(making / SIGNATURE, [signer.sign(content)])
        sync_directory(making / JOURNAL)
    return BackedUp(manifest, signer is not None)


def _copy(directory: Path, making: Path) -> Manifest:
    journal = copy_journal(directory / JOURNAL, making / JOURNAL)
    documents = documents_of(directory)
    beside = [name for name in BESIDE if documents.has(name)]
    return Manifest(
        event=journal.event,
        settings=journal.settings,
        made=datetime.now(UTC),
        polytempo=metadata.version("polytempo"),
        sha256={f"{JOURNAL}/{name}": sha256 for name, sha256 in journal.sha256.items()}
        | {name: write_new(making / name, [documents.read(name)]).sha256 for name in beside},
    )


def restore(
    backup: Path,
    directory: Path,
    consent: Consent = NO_CONSENT,
    allowed: Collection[str] = (),
    key: Path | None = None,
    unsigned: bool = False,
) -> Restored:
    """Make a service from a copy, in a directory that has none. Its orders get new numbers: clients may hold tasks that
    were ordered after the copy was made, which are void now. What the directory has already (keys, tokens, the list of
    those who may talk to the service) stays. ``consent`` is that of ``open_service``, ``allowed`` that of
    ``settings_of``. ``key`` is the file of the public key that the copy has to be signed with, by default the
    directory's own; ``unsigned``: whoever asks vouches for the copy."""
    manifest = _manifest(backup, None if unsigned else key or directory / BACKUP_PUBLIC_KEY)
    beside = {name: read_checked(backup, name, manifest.sha256[name]) for name in BESIDE if name in manifest.sha256}
    # Some of its codes may have been used since.
    roster = with_tables(Roster.parse(beside[ACCESS], str(backup / ACCESS)), codes={}) if ACCESS in beside else None
    target, making = directory / JOURNAL, directory / f"{JOURNAL}.restoring"
    check_empty(target)
    with _in_plain_words(f"Cannot restore to {directory}"), _made(directory):
        shutil.rmtree(making, ignore_errors=True)  # a restore that was interrupted
        try:
            making.mkdir(mode=0o700)
            for name, sha256 in manifest.sha256.items():
                if name not in BESIDE:
                    copy_checked(backup, name, sha256, making / name.removeprefix(f"{JOURNAL}/"))
            settings = _settings(backup, making, allowed)
            event, digest = _renumber(making, settings, consent)
            kept = [name for name in BESIDE if documents_of(directory).has(name)]
            if roster is not None and ACCESS not in kept:
                put_document(directory, ACCESS, roster.as_json())
            if OPERATIONS in beside and OPERATIONS not in kept:
                put_document(directory, OPERATIONS, beside[OPERATIONS])
            _put_in_place(making, directory)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
    return Restored(manifest, settings, event, digest, kept)


def check_empty(target: Path) -> None:
    """Refuse to restore over a journal."""
    if database_of(target.parent) is None:
        if target.exists() and any(target.iterdir()):
            raise UserError(
                f"{target} holds a journal already. Nothing was changed. Move it away, or choose another DIR."
            )
    elif Journal.exists(target):
        raise UserError(
            f"{database_of(target.parent)} holds a service already. Nothing was changed. Choose another schema in "
            f"{target.parent / STORE}, or another DIR."
        )


def _put_in_place(making: Path, directory: Path) -> None:
    """Let the journal that was made count."""
    if database_of(directory) is None:
        hand_over_folder(making, directory)
        making.rename(directory / JOURNAL)
        sync_directory(directory)
        return
    with closing(FileStore(making)) as made, closing(make_store(directory / JOURNAL)) as store:
        store.lock()
        transfer(made, store, made.about())
    shutil.rmtree(making)


def put_document(directory: Path, name: str, content: bytes) -> None:
    """Let the service in this directory have this document."""
    with documents_of(directory).changing(name, make=True) as document:
        document.write(content)


def _settings(backup: Path, copied: Path, allowed: Collection[str]) -> ServiceSettings:
    """What the journal of a backup was begun with, as far as it is allowed."""
    with closing(existing_journal(copied)) as journal:
        settings = recorded_settings(journal)
    check_imports(f"The backup in {backup}", settings.import_paths(), allowed)
    return settings


def _renumber(journal: Path, settings: ServiceSettings, consent: Consent) -> tuple[int, str]:
    """Recover the state, and let orders be numbered from far ahead on. It ends with a snapshot, as a clean stop does:
    another version may start next. Returns the last event before, and its digest."""
    opened = open_service(journal, settings, consent)
    with closing(opened.journal):
        service, event, digest = opened.service, opened.journal.last, opened.service.digest()
        renumbered = Event("renumbered", service.now, number=service.number + RENUMBERED_BY)
        opened.journal.append([renumbered])
        service.apply(renumbered)
        with closing(Snapshots(opened.journal)) as snapshots:
            snapshots.finish(service)
    return event, digest


def _manifest(backup: Path, key: Path | None) -> Manifest:
    """What a copy says of itself. Nothing of it is looked at before its signature is found to be this key's."""
    if not os.path.lexists(backup / MANIFEST):
        raise UserError(f"{backup} is no backup: it has no {MANIFEST}. Expected what `polytempo backup` made.")
    content = read_small(backup, MANIFEST, LARGEST_MANIFEST)
    if key is not None:
        _check_signature(backup, content, key)
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise damaged(backup, f"{MANIFEST} cannot be read ({complaint(error)})") from None
    for name in manifest.sha256:
        folder, _, file = name.rpartition("/")
        if name not in BESIDE and not (folder == JOURNAL and COPIED.fullmatch(file)):
            raise damaged(backup, f"its manifest names {name!r}, which is no file of a backup")
    return manifest


def _check_signature(backup: Path, content: bytes, key: Path) -> None:
    otherwise = "Or give --unsigned to restore it without a check, if you know that nobody has changed it."
    if not key.exists():
        raise UserError(
            f"There is no {key} to check the backup with. Give --key FILE, the service's {BACKUP_PUBLIC_KEY} as it was "
            f"kept apart from the backups. {otherwise}"
        )
    if not os.path.lexists(backup / SIGNATURE):
        raise UserError(f"The backup in {backup} is not signed: it has no {SIGNATURE}. Take a signed one. {otherwise}")
    if not is_signed_by(backup_verifier(key), content, read_small(backup, SIGNATURE, LARGEST_SIGNATURE)):
        raise UserError(
            f"The backup in {backup} is not signed with the key of {key}: somebody has changed it, or it is of another "
            "service. Nothing was changed. Take another backup, or give --key FILE of the service that made it."
        )


@contextmanager
def _made(directory: Path) -> Iterator[None]:
    """The directory, made if it is not there; and gone again if nothing comes of it."""
    was_there = directory.exists()
    make_directory(directory, 0o700)
    try:
        yield
    except BaseException:
        if not was_there:
            with suppress(OSError):
                directory.rmdir()
        raise


@contextmanager
def _in_plain_words(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{what}: {error.strerror} ({error.filename}). Choose another directory, or make room."
        ) from None
