"""A stopped service from one store to another: its journal, who may talk to it, its settings. Keys and certificates
belong to machines and stay where they are."""

import tempfile
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from polytempo.core.disk.files import hand_over_folder
from polytempo.core.errors import PassingError, UserError
from polytempo.serve.journal.continuing import MOVED
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.replay import newest
from polytempo.serve.journal.stores import make_store
from polytempo.serve.journal.transfer import transfer
from polytempo.serve.paths import JOURNAL
from polytempo.serve.process.backup import BESIDE, check_empty, put_document
from polytempo.serve.storage.address import PostgresAddress, database_of, is_address, note_database
from polytempo.serve.storage.documents import documents_of
from polytempo.serve.storage.errors import JournalError, TakenError


@dataclass(frozen=True)
class Moved:
    """What has been done."""

    event: int
    """Number of the last event."""
    digest: str
    """Of the state after it, there and here."""
    noted: bool
    """Does the directory that it was moved from say now where it is?"""


def move(source: str, target: str, allowed: Collection[str] = ()) -> Moved:
    """Move the service in a directory, or at the address of a database, to another. The one that is left is marked: it
    does not start any more. ``allowed`` is that of ``settings_of``."""
    with _directory(source) as here, _directory(target) as there:
        if not Journal.exists(here / JOURNAL):
            raise UserError(f"{shown(source)} holds no service. Expected a service's directory, or its database.")
        check_empty(there / JOURNAL)
        _check_no_documents(there)
        with _locked(here, source) as journal:
            before = newest(here, allowed).service.digest()
            event = _copy(journal, there)
            for name in [name for name in BESIDE if documents_of(here).has(name)]:
                put_document(there, name, documents_of(here).read(name))
            after = newest(there, allowed).service.digest()
            if before != after:
                raise JournalError(
                    f"The copy in {shown(target)} differs from {shown(source)} (digest {after[:16]} and "
                    f"{before[:16]}). {shown(source)} is as it was: go on with it, and empty the other."
                )
            when = datetime.now(UTC).isoformat(timespec="seconds")
            journal.describe(journal.about | {MOVED: {"to": shown(target), "when": when}})
            noted = is_address(target) and not is_address(source) and database_of(here) is None
        if noted:
            note_database(here, target)
    return Moved(event, after, noted)


@contextmanager
def _directory(where: str) -> Iterator[Path]:
    """The directory that is named, or one that names the database."""
    if not is_address(where):
        yield Path(where)
        return
    with tempfile.TemporaryDirectory(prefix="polytempo-") as name:
        note_database(Path(name), where)
        yield Path(name)


def shown(where: str) -> str:
    """What messages call it: an address may hold a password."""
    return str(PostgresAddress.parse(where)) if is_address(where) else where


def _check_no_documents(directory: Path) -> None:
    documents = documents_of(directory)
    for name in BESIDE:
        if documents.has(name):
            raise UserError(f"There is {documents.title(name)} already. Nothing was changed. Choose another place.")


@contextmanager
def _locked(directory: Path, source: str) -> Iterator[Journal]:
    with closing(Journal(directory / JOURNAL)) as journal:
        try:
            journal.lock()
        except TakenError:
            raise PassingError(
                f"The service in {shown(source)} is running. Nothing was changed. Stop it, and every server that "
                "stands by, and try again."
            ) from None
        yield journal


def _copy(journal: Journal, there: Path) -> int:
    about = {name: value for name, value in journal.about.items() if name != MOVED}
    with closing(make_store(there / JOURNAL)) as store:
        store.lock()
        event = transfer(journal.store, store, about)
    if database_of(there) is None:
        hand_over_folder(there / JOURNAL, there)
    return event
