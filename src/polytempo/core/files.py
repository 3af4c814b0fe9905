"""Files that a crash or a power cut leaves whole: the old content or the new, never a part."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], None], mode: int = 0o644) -> None:
    """Let ``write`` fill a temporary file, sync it, and put it in the place of ``path``."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        os.close(descriptor)
        write(temporary)
        temporary.chmod(mode)
        hand_over(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_bytes(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Put this content in the place of ``path``; nobody can read it before it has its mode."""

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_whole(path, write, mode)


def hand_over(path: Path) -> None:
    """Give what root has written into somebody's directory to whom the directory belongs: a service that runs with
    fewer rights could not read it otherwise."""
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)


def sync_directory(directory: Path) -> None:
    """Make a rename in this directory outlast a power cut."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
