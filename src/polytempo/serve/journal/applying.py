"""Which event is being applied, in a few bytes of a file that outlast the process. A strategy that hangs, uses up the
memory or ends the process does so again when its event is replayed: whoever starts next learns which event it was, and
which events were never applied."""

import os
import struct
import time
import zlib
from contextlib import suppress
from pathlib import Path

from polytempo.serve.state.events import Event

RECORD = struct.Struct("<QQQQQQQQQ")
"""The event being applied (0: none), the event that the last process died in (0: none), how often in a row, which code
did (0: not known); the first event that was never applied (0: not known), the last that was refused (0: none), and
since which start of the machine these two are known (0: not known); the event that the operator was told of (0:
none); the epoch in which this machine led last (0: nobody counts)."""
BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Another one after each start of the machine."""
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
        died_in, self._died_in, self._deaths, self._code, self._first_new, self._refused, boot, *rest = self._read()
        self._named, self._epoch = rest
        if died_in:
            self._died_in, self._deaths = died_in, self._deaths + 1 if died_in == self._died_in else 1
        self._boot = _boot()
        if boot != self._boot or not boot:  # the file is not synced: a power cut leaves an older one
            self._first_new = self._refused = 0
        self._write()

    def begin(self, number: int, event: Event | None = None) -> None:
        self.number, self.since, self._event = number, time.monotonic(), event
        self._write()

    def end(self) -> None:
        if self.number == self._named:  # it came back
            self._named = 0
        self.number = 0
        self._write()

    def reach(self, number: int) -> None:
        """The events up to this one have been applied, and may be acknowledged when this is written: at ``end``."""
        self._first_new = number + 1

    def begin_epoch(self, epoch: int) -> None:
        """Whoever wrote last: if it was another machine, nothing is known of what it had applied."""
        if epoch and self._epoch != epoch - 1:
            self._first_new = self._refused = 0
        self._epoch = epoch
        self._write()

    def refuse(self, number: int) -> None:
        """This event was rolled back. It outlasts the process even if the journal has no room for its mark."""
        self._refused = number
        self._write()

    def never_applied(self, number: int) -> bool:
        """Is it certain that the strategy has not taken this event, so that nobody was told that it had? A replay is no
        proof: it meets events that were acknowledged long ago."""
        return number == self._refused or 0 < self._first_new <= number

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

    @property
    def suspects(self) -> set[int]:
        """Events that something is known to be wrong with: died in, told of, or rolled back."""
        return {self._died_in, self._named, self._refused} - {0}

    @property
    def named(self) -> int | None:
        """The event that the operator was told of: the method hangs in it, or ends the process."""
        return self._named or None

    def name(self, number: int) -> None:
        """The operator is told of this event now."""
        self._named = number
        self._write()

    def try_again(self) -> None:
        """Let the next start try the fatal event once more: what was wrong may be mended by then."""
        self._deaths = DEATHS - 1
        self._write()

    def use_code(self, code: int) -> None:
        """From now on this version of the code applies events. Deaths of another one do not count."""
        if self._code not in (0, code):
            self._died_in = self._deaths = self._named = 0
        self._code = code
        self._write()

    def clear(self, last: int) -> None:
        """Every event up to the last has been applied: nothing is suspected any more."""
        self._died_in = self._deaths = self._refused = self._named = 0
        self.reach(last)
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
                suspected = (self._died_in, self._deaths, self._code)
                known = (self._first_new, self._refused, self._boot, self._named, self._epoch)
                os.pwrite(self._file, RECORD.pack(self.number, *suspected, *known), 0)


def _boot() -> int:
    """A number for this start of the machine; 0 where the system does not say."""
    try:
        return zlib.crc32(BOOT.read_bytes())
    except OSError:
        return 0
