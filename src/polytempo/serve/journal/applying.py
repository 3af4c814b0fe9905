"""Which event is being applied, in a few bytes of a file that outlast the process. A strategy that hangs, uses up the
memory or ends the process does so again when its event is replayed: whoever starts next learns which event it was."""

import os
import struct
import time
from contextlib import suppress
from pathlib import Path

from polytempo.serve.state.events import Event

RECORD = struct.Struct("<QQQQ")
"""The event being applied (0: none), the event that the last process died in (0: none), how often in a row, and which
code did (0: not known)."""
DEATHS = 2
"""In a row and in one event. The first may be anybody's kill -9; when a replay of the same event dies too, it is the
event."""


class Applying:
    """Of one journal. Without a path, or where the disk has no room for it, nothing outlasts the process."""

    def __init__(self, path: Path | None = None) -> None:
        self.number = 0
        """Of the event that is being applied; 0: none."""
        self.since = 0.0
        """When it began, by the monotonic clock."""
        self._event: Event | None = None
        self._file: int | None = None
        if path is not None:
            with suppress(OSError):
                self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        died_in, self._died_in, self._deaths, self._code = self._read()
        if died_in:
            self._died_in, self._deaths = died_in, self._deaths + 1 if died_in == self._died_in else 1
        self._write()

    def begin(self, number: int, event: Event | None = None) -> None:
        self.number, self.since, self._event = number, time.monotonic(), event
        self._write()

    def end(self) -> None:
        self.number = 0
        self._write()

    @property
    def description(self) -> str:
        """What is being applied, in words."""
        return f"event {self.number}" + ("" if self._event is None else f" ({self._event.description})")

    @property
    def died_in(self) -> int | None:
        """The event that the last process died in."""
        return self._died_in or None

    @property
    def fatal_event(self) -> int | None:
        """The event that the last processes died in, if it was the same one more than once."""
        return self._died_in if self._deaths >= DEATHS else None

    def try_again(self) -> None:
        """Let the next start try the fatal event once more: what was wrong may be mended by then."""
        self._deaths = DEATHS - 1
        self._write()

    def use_code(self, code: int) -> None:
        """From now on this version of the code applies events. Deaths of another one do not count."""
        if self._code not in (0, code):
            self._died_in = self._deaths = 0
        self._code = code
        self._write()

    def clear(self) -> None:
        """Every event has been applied: nothing is suspected any more."""
        self._died_in = self._deaths = 0
        self._write()

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self) -> tuple[int, ...]:
        content = b"" if self._file is None else os.pread(self._file, RECORD.size, 0)
        return RECORD.unpack(content.ljust(RECORD.size, b"\0"))

    def _write(self) -> None:
        """Not synced: the system keeps it when the process dies, and a power cut is nobody's fault."""
        if self._file is not None:
            with suppress(OSError):
                os.pwrite(self._file, RECORD.pack(self.number, self._died_in, self._deaths, self._code), 0)
