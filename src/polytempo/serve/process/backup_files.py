"""The files of a backup as they are read. Whoever can write where backups lie decides what is there: a link that leads
elsewhere, a pipe that never ends, a file that changes while it is looked at. So a file is opened once, only if it is a
plain file of the backup itself, and what is checked is what is taken."""

import errno
import hashlib
import os
from pathlib import Path
from typing import IO

from polytempo.core.errors import UserError
from polytempo.serve.journal.copying import chunks_of, write_new
from polytempo_client.disk.reading import TEXT_BYTES, open_plain

NOT_A_FILE = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EINVAL)
"""What the system says of links and sockets, and ``open_plain`` of pipes, devices and folders."""


def read_small(backup: Path, name: str, most: int) -> bytes:
    """The content of a file, which may have at most so many bytes."""
    with open_file(backup, name) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise damaged(backup, f"{name} has more than {most:,} bytes")
    return content


def read_checked(backup: Path, name: str, sha256: str) -> bytes:
    """The content of a file of settings with this SHA-256."""
    content = read_small(backup, name, TEXT_BYTES)
    _check(backup, name, hashlib.sha256(content).hexdigest(), sha256)
    return content


def copy_checked(backup: Path, name: str, sha256: str, to: Path) -> None:
    """Copy a file with this SHA-256 to a new one. If it is another one, what was written is of no use."""
    with open_file(backup, name) as file:
        written = write_new(to, chunks_of(file))
    _check(backup, name, written.sha256, sha256)


def open_file(backup: Path, name: str) -> IO[bytes]:
    """A plain file of the backup, to read. No link below the backup's own directory is followed."""
    try:
        return _opened(backup, name)
    except FileNotFoundError:
        raise damaged(backup, f"{name} is missing") from None
    except OSError as error:
        plain = "is a link or a device, not a plain file"
        why = plain if error.errno in NOT_A_FILE else f"cannot be read ({error.strerror})"
        raise damaged(backup, f"{name} {why}") from None


def _opened(backup: Path, name: str) -> IO[bytes]:
    *folders, last = name.split("/")
    directory = os.open(backup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            os.close(directory)
            directory = below
        return open_plain(last, within=directory)
    finally:
        os.close(directory)


def _check(backup: Path, name: str, found: str, expected: str) -> None:
    if found != expected:
        raise damaged(backup, f"{name} is not what was written")


def damaged(backup: Path, why: str) -> UserError:
    return UserError(f"The backup in {backup} is damaged: {why}. Nothing was changed. Take another backup.")
