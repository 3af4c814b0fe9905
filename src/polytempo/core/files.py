"""Files that a crash or a power cut leaves whole: the old content or the new, never a part."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], None], mode: int = 0o644) -> None:
    """Let ``write`` fill a temporary file, sync it, and put it in the place of ``path``."""
    with _replacing(path) as (descriptor, temporary):
        os.close(descriptor)
        write(temporary)
        temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())


def write_bytes(path: Path, content: bytes, mode: int = 0o644, *, shared: bool = False, synced: bool = True) -> None:
    """Put this content in the place of ``path``; nobody can read it before it has its mode. ``shared``: with the owner
    of the directory (``hand_over``). Nothing is done by name before the content is whole: the directory may be
    somebody else's. What is not ``synced`` survives a crash of the process, not a power cut."""
    with _replacing(path, synced) as (descriptor, _), os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(descriptor, mode)
        if shared:
            hand_over(descriptor, path.parent)
        if synced:
            os.fsync(descriptor)


@contextmanager
def _replacing(path: Path, synced: bool = True) -> Iterator[tuple[int, Path]]:
    """A temporary file, open and by name, that takes the place of ``path`` when it is done."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        yield descriptor, temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if synced:
        sync_directory(path.parent)


def hand_over(descriptor: int, directory: Path) -> None:
    """Give an open file of root's to whom this directory belongs: a service that runs there with fewer rights could not
    read it otherwise."""
    if os.geteuid() == 0:
        owner = directory.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)


def sync_directory(directory: Path) -> None:
    """Make a rename in this directory outlast a power cut."""
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
