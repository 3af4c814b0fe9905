"""Signs of life of the host's thread, for others to read: whoever waits for a method cannot say that it waits."""

import sys
import threading
import time
import traceback
from typing import NamedTuple

from polytempo.serve.journal.applying import Applying


class Health(NamedTuple):
    """How a service is doing, in short."""

    is_healthy: bool
    """Does its host live, does it come back from what it does, and can it write its journal?"""
    age: float
    """Seconds since the host's loop last did something."""


class Pulse:
    """Written by the host's thread, and read by any."""

    def __init__(self, applying: Applying, thread: threading.Thread) -> None:
        self._applying, self._thread = applying, thread
        self._last = time.monotonic()
        self._is_resting = False

    def beat(self) -> None:
        """The host has come back from something."""
        self._last = time.monotonic()
        self._is_resting = False

    def rest(self) -> None:
        """The host waits for something to do, until the next beat."""
        self._is_resting = True

    def busy(self) -> float:
        """Seconds for which the thread has not come back from something; 0 while it waits for something to do."""
        return 0.0 if self._is_resting else self.age()

    def age(self) -> float:
        """Seconds since the last sign of life."""
        return time.monotonic() - max(self._last, self._applying.since)

    def stack(self) -> str:
        """Where the thread is."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))
