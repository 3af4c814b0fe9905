"""Which store a journal is in: the files of its directory, or the database that the service's file ``store`` names."""

from dataclasses import dataclass
from pathlib import Path

from polytempo.serve.journal.files.store import FileStore
from polytempo.serve.journal.store import Store
from polytempo.serve.paths import DATABASE
from polytempo.serve.storage.address import journal_database


def is_there(directory: Path) -> bool:
    """Is there a store? Its journal need not have begun."""
    address = journal_database(directory)
    if address is None:
        return (directory / DATABASE).exists()
    from polytempo.serve.storage.tables import has_tables  # an extra

    return has_tables(address)


@dataclass(frozen=True)
class Candidate:
    """A server that may lead a service which several servers share."""

    name: str
    """No other has it."""
    lease_seconds: float
    """That it may be silent before another one leads."""


def open_store(directory: Path, candidate: Candidate | None = None) -> Store:
    address = journal_database(directory)
    if address is None:
        return FileStore(directory)
    from polytempo.serve.journal.postgres.store import PostgresStore  # an extra

    if candidate is None:
        return PostgresStore(address)
    return PostgresStore(address, candidate.name, candidate.lease_seconds)


def make_store(directory: Path, candidate: Candidate | None = None) -> Store:
    """The same, made if it is not there."""
    address = journal_database(directory)
    if address is None:
        return FileStore.make(directory)
    from polytempo.serve.storage.tables import make_tables  # an extra

    make_tables(address)
    return open_store(directory, candidate)
