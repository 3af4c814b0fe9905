"""Files that somebody else may have written. They have to be plain files of a bounded size: a pipe would keep its
reader waiting."""

import errno
import os
import stat
import sys
from pathlib import Path
from typing import IO

from polytempo_client.memory import usable_bytes

TEXT_BYTES = 1 << 28
"""Most bytes of a file of settings, or of tables."""


def read_plain(path: Path, most: int = TEXT_BYTES) -> bytes:
    """The content of a plain file of at most so many bytes; OSError if it is something else."""
    with open_plain(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes, and at most {most:,} are read")
        return file.read(size)


def read_given(path: Path, most: int) -> bytes:
    """What somebody gives by hand, at most so many bytes: a plain file, or a pipe that somebody writes to."""
    with open(path, "rb", opener=_open_at_once) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
    return content


def _open_at_once(path: str, flags: int) -> int:
    """A pipe without a writer is empty. Opening it would wait for one."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if sys.platform != "win32":
        os.set_blocking(descriptor, True)
    return descriptor


def open_plain(path: Path | str, within: int | None = None) -> IO[bytes]:
    """A plain file, open for reading; OSError if it is something else, such as a pipe or a device. ``within``: the
    descriptor of its directory, in which a link is not followed."""
    # Without O_NONBLOCK a pipe that nobody writes to would hold us up here.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOCTTY", 0)
    descriptor = os.open(path, flags if within is None else flags | os.O_NOFOLLOW, dir_fd=within)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a plain file")
    return os.fdopen(descriptor, "rb")


def memory_limit() -> int:
    """The most bytes that one file may become: half of the memory that the process may use."""
    return usable_bytes() // 2
