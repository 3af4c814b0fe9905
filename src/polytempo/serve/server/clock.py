"""The service's time."""

import logging
import time
from collections.abc import Callable

from polytempo_client.logs import log


class Clock:
    """Seconds of service uptime, over restarts: it goes on from the last time in the journal, and never back."""

    def __init__(self, began: float, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._offset = began - seconds()
        self._last = began

    def __call__(self) -> float:
        now = self._seconds() + self._offset
        if now < self._last:
            log("clock went backwards", level=logging.WARNING, seconds=self._last - now)
            self._offset += self._last - now
            now = self._last
        self._last = now
        return now
