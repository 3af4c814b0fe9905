"""The journal's files of bodies: what clients handed in, one behind the other."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from polytempo.serve.journal.rows import EventRow
from polytempo.serve.storage.errors import DamagedError
from polytempo_client.disk.files import sync_directory
from polytempo_client.protocol.framing import Buffer

SEGMENT_BYTES = 64 << 20
"""A file that is longer is followed by another."""
MOST_BUFFERS = 1024
"""That the system writes with one call; answers may bring more."""


class Segment:
    """The file that bodies are appended to, begun anew; ``first`` is the event that its first body belongs to."""

    def __init__(self, directory: Path, first: int) -> None:
        self.first = first
        self.end = 0
        self.sync_failed = False
        """Linux may then take pages for written that are not, and a later sync proves nothing: begin another file."""
        path = directory / segment_name(first)
        path.unlink(missing_ok=True)  # a crash or a failed sync left it, and no row speaks of it
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            sync_directory(directory)
        except OSError:
            os.close(self._file)
            raise

    def append(self, body: Sequence[Buffer], size: int) -> int:
        """Where the body begins. It is safe after ``sync``."""
        begins = self.end
        written = os.pwritev(self._file, body[:MOST_BUFFERS], begins)
        while written < size:  # more than one call takes
            rest = memoryview(b"".join(body))[written:]
            written += os.pwrite(self._file, rest, begins + written)
        self.end += size
        return begins

    def sync(self) -> None:
        try:
            os.fdatasync(self._file)
        except OSError:
            self.sync_failed = True
            raise

    def check_room(self, size: int) -> None:
        """Raises an OSError if so many bytes cannot be appended now."""
        try:
            os.posix_fallocate(self._file, self.end, max(size, 1))
        finally:
            self.cut(self.end)

    def cut(self, end: int) -> None:
        """Forget what lies behind."""
        self.end = end
        with suppress(OSError):
            os.ftruncate(self._file, end)

    def close(self) -> None:
        os.close(self._file)


def body_of(row: EventRow, directory: Path) -> bytearray | None:
    """What came with an event, from its row or from a segment."""
    if row.segment is None or row.begins is None:
        return None if row.body is None else bytearray(row.body)
    try:
        return _read(directory / segment_name(row.segment), row.begins, row.size)
    except EOFError:
        raise DamagedError(directory, row.number, "its body is cut off") from None
    except OSError as error:
        raise DamagedError(directory, row.number, error.strerror or str(error)) from None


def _read(path: Path, begins: int, size: int) -> bytearray:
    """So many bytes of a file. Raises EOFError if there are fewer."""
    body = bytearray(size)
    with path.open("rb") as file:
        file.seek(begins)
        if file.readinto(body) != size:
            raise EOFError
    return body


def set_aside(directory: Path, segments: Iterable[int]) -> None:
    """Give the segments that begin with these events names that no journal reads."""
    for first in segments:
        path = directory / segment_name(first)
        with suppress(FileNotFoundError):
            path.rename(path.with_suffix(".lost"))


def segment_name(first: int) -> str:
    return f"updates-{first:012d}.bodies"
