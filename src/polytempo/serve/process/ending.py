"""The end of a service's process. A method may have left threads behind, or handlers that run at the end, which the
interpreter would wait for. Everything is safe in the journal by then, so nobody has to."""

import os
import sys
import threading
import traceback
from collections.abc import Collection
from contextlib import suppress
from typing import NoReturn

from polytempo.core.errors import StrategyError, UserError, exit_code


class StuckError(UserError):
    """A thread may never come back: the process has to end without it, with this exit code."""

    def __init__(self, reason: str, code: int) -> None:
        super().__init__(reason)
        self.code = code


def end_process(code: int) -> NoReturn:
    """End now, with what was printed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more
            stream.flush()
    os._exit(code)


def threads_since(before: Collection[threading.Thread]) -> list[threading.Thread]:
    """Threads that were not there before and would keep the process from ending."""
    return [thread for thread in threading.enumerate() if not thread.daemon and thread not in before]


def without_waiting(error: Exception) -> StuckError:
    """An error of a process that has such threads."""
    if isinstance(error, (UserError, StrategyError)):
        return StuckError(str(error), exit_code(error))
    return StuckError("".join(traceback.format_exception(error)), 1)
