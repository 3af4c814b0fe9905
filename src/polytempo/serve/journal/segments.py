"""The journal's files of bodies: what clients handed in, one behind the other."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from polytempo.core.disk.files import sync_directory
from polytempo.serve.protocol.framing import Buffer

SEGMENT_BYTES = 64 << 20
"""A file that is longer is followed by another."""
MOST_BUFFERS = 1024
"""That the system writes with one call; answers may bring more."""


class Segment:
    """The file that bodies are appended to, begun anew; ``first`` is the event that its first body belongs to."""

    def __init__(self, directory: Path, first: int) -> None:
        self.first = first
        self.end = 0
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._file = os.open(directory / segment_name(first), flags, 0o600)
        sync_directory(directory)

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
        os.fdatasync(self._file)

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


def segment_name(first: int) -> str:
    return f"updates-{first:012d}.bodies"
