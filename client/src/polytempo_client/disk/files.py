"""Files that a crash or a power cut leaves whole: the old content or the new, never a part."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def write_bytes(path: Path, content: bytes, mode: int = 0o644, *, durable: bool = True) -> None:
    """Replace ``path`` by a file with this content; nobody can read it before it has its mode. ``durable``: the new
    file outlasts a power cut, which takes a sync of the disk."""
    with replacing(path, durable) as (descriptor, _), os.fdopen(descriptor, "wb") as file:
        fill(file, content, mode)
        if durable:
            os.fsync(descriptor)


def fill(file: IO[bytes], content: bytes, mode: int) -> None:
    """Write an open file. Nothing is done by name: the directory may be somebody else's."""
    file.write(content)
    file.flush()
    if hasattr(os, "fchmod"):  # Windows has other rights
        os.fchmod(file.fileno(), mode)


def set_aside(path: Path) -> Path | None:
    """Move a file that somebody may miss out of the way of a new one: to where it is now, or None if it cannot be
    moved."""
    try:
        for number in range(1, 1000):
            aside = path.with_name(f"{path.name}.aside-{number}")
            if not aside.exists():
                return path.rename(aside)
    except OSError:
        pass
    return None


@contextmanager
def replacing(path: Path, durable: bool) -> Iterator[tuple[int, Path]]:
    """A temporary file, open and by name, that replaces ``path`` when it is done."""
    import tempfile  # here, because it takes long to import

    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        yield descriptor, temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Make a rename in this directory outlast a power cut. Windows does so by itself."""
    if os.name == "nt":
        return
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
