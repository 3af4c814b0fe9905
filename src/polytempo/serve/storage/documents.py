"""The small files of a service that operators change while it runs: who may talk to it, and how it is run. They lie in
its directory, or in the database that it is kept in."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from polytempo.core.disk.files import hand_over, make_directory, write_shared
from polytempo.core.errors import PassingError, UserError
from polytempo.serve.storage.address import database_of
from polytempo_client.disk.locks import LockedError, take
from polytempo_client.disk.reading import read_plain

LOCK_SECONDS = 10.0
"""That somebody else may take to change one."""


class DocumentChange:
    """A document that nobody else changes meanwhile. What is written counts at the end."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content
        """None if it is not there."""
        self.written: bytes | None = None

    def write(self, content: bytes) -> None:
        self.written = content


class Documents(ABC):
    """Those of one service."""

    is_shared = False
    """Are they those of several servers?"""

    @abstractmethod
    def title(self, name: str) -> str:
        """What messages call a document."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """FileNotFoundError if it is not there; another OSError if it cannot be read."""

    @abstractmethod
    def stamp(self, name: str) -> object:
        """Another one after each change; None if that cannot be told."""

    @abstractmethod
    def changing(self, name: str, make: bool = False) -> AbstractContextManager[DocumentChange]:
        """Change a document, while nobody else does. ``make``: the place where it lies, if that is not there."""

    def has(self, name: str) -> bool:
        try:
            self.read(name)
        except FileNotFoundError:
            return False
        except OSError:
            pass
        return True


class FileDocuments(Documents):
    """Files in a directory, each changed under a lock of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def title(self, name: str) -> str:
        return str(self._directory / name)

    def read(self, name: str) -> bytes:
        return read_plain(self._directory / name)

    def stamp(self, name: str) -> object:
        try:
            found = os.stat(self._directory / name)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    @contextmanager
    def changing(self, name: str, make: bool = False) -> Iterator[DocumentChange]:
        path = self._directory / name
        try:
            if make:
                make_directory(self._directory, 0o700)
            elif not self._directory.is_dir():
                raise UserError(f"There is no directory {self._directory}. Expected the --dir of `polytempo serve`.")
            lock = os.open(self._directory / f".{name}.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                hand_over(lock, self._directory)
                _take(lock, path)
                change = DocumentChange(self.read(name) if os.path.lexists(path) else None)
                yield change
                if change.written is not None:
                    write_shared(path, change.written, 0o600)
            finally:
                os.close(lock)
        except OSError as error:
            raise UserError(f"Cannot write {path}: {error.strerror}. Choose another directory.") from None


def _take(lock: int, path: Path) -> None:
    try:
        take(lock, path, LOCK_SECONDS)
    except LockedError:
        raise PassingError(
            f"{path} is locked by another process (waited {LOCK_SECONDS:g} s). Nothing was changed. Is a `polytempo` "
            "command there that was stopped half-way? End it, and try again."
        ) from None


def documents_of(directory: Path) -> Documents:
    """Those of the service in this directory."""
    address = database_of(directory)
    if address is None:
        return FileDocuments(directory)
    from polytempo.serve.storage.document_table import TableDocuments  # an extra

    return TableDocuments(address)
