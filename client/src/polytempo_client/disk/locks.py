"""Locks between processes. The system releases a lock when its process ends, however it ends: none is left behind."""

import errno
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

RETRY_SECONDS = 0.02
TAKEN = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
"""What the system says of a file that is locked: POSIX the first, Windows the others."""


class LockedError(Exception):
    """Another process holds the lock."""


@contextmanager
def locked(path: Path, seconds: float = math.inf, mode: int = 0o600) -> Iterator[None]:
    """Hold the lock file ``path`` while the block runs. Wait for it at most so many seconds, then raise LockedError.
    The file stays: to remove it would take it from those who wait for it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        take(descriptor, path, seconds)
        yield
    finally:
        os.close(descriptor)


def take(descriptor: int, path: Path, seconds: float = 0.0) -> None:
    """Lock an open file until it is closed. Wait for it at most so many seconds, then raise LockedError."""
    deadline = time.monotonic() + seconds
    while not _try_lock(descriptor):
        if time.monotonic() >= deadline:
            raise LockedError(f"{path} is locked by another process.")
        time.sleep(RETRY_SECONDS)


def _try_lock(descriptor: int) -> bool:
    # The modules are imported here because each system has only one of them.
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in TAKEN:
            return False
        raise
    return True
