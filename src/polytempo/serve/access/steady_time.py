"""The time by which tokens expire."""

import logging
import threading
import time
from collections.abc import Callable

from polytempo_client.logs import log

JUMP = 60.0
"""Seconds that the system's clock may be set by at once. More is a jump."""
LASTING = 600.0
"""Seconds after which a jump counts."""


class SteadyTime:
    """The system's time, in seconds since 1970. A jump of its clock counts when it has lasted for ten minutes without
    another: a clock that is wrong for a moment would otherwise expel every client whose token has an end, and none of
    them tries again."""

    def __init__(self, wall: Callable[[], float] = time.time, seconds: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._seconds = wall, seconds
        self._offset = wall() - seconds()
        self._jumped: tuple[float, float] | None = None
        """When the last jump was, and the offset since."""
        self._lock = threading.Lock()

    def __call__(self) -> float:
        with self._lock:
            seconds = self._seconds()
            offset = self._wall() - seconds
            jump = offset - self._offset
            if abs(jump) <= JUMP:
                self._offset, self._jumped = offset, None
            elif self._jumped is None or abs(offset - self._jumped[1]) > JUMP:
                self._jumped = seconds, offset
                log("clock jumped", level=logging.ERROR, seconds=jump, counts_in=LASTING)
            elif seconds < self._jumped[0] + LASTING:
                self._jumped = self._jumped[0], offset
            else:
                log("clock jump counts", level=logging.ERROR, seconds=jump)
                self._offset, self._jumped = offset, None
            return seconds + self._offset
