"""Which store a journal is in: the files of its directory, or the database that the service's file ``store`` names."""

from pathlib import Path

from polytempo.serve.journal.files.store import FileStore
from polytempo.serve.journal.store import Store
from polytempo.serve.paths import DATABASE


def is_there(directory: Path) -> bool:
    """Is there a store? Its journal need not have begun."""
    return (directory / DATABASE).exists()


def open_store(directory: Path) -> Store:
    return FileStore(directory)


def make_store(directory: Path) -> Store:
    """The same, made if it is not there."""
    return FileStore.make(directory)
