"""Files of several writers and owners, which a crash or a power cut leaves whole: the old content or the new, never a
part."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from polytempo_client.disk.files import fill, replacing, sync_directory, write_bytes


def write_whole(path: Path, write: Callable[[Path], None], mode: int = 0o644, *, durable: bool = True) -> None:
    """Replace ``path`` by a file that ``write`` fills. If ``write`` fails, ``path`` stays as it is. ``durable``: the
    new file outlasts a power cut, which takes a sync of the disk."""
    with replacing(path, durable) as (descriptor, temporary):
        os.close(descriptor)
        write(temporary)
        temporary.chmod(mode)
        if durable:
            with temporary.open("r+b") as file:
                os.fsync(file.fileno())


def write_shared(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replace ``path`` by a file with this content, which belongs to the owner of the directory (``hand_over``)."""
    with replacing(path, durable=True) as (descriptor, _), os.fdopen(descriptor, "wb") as file:
        fill(file, content, mode)
        hand_over(descriptor, path.parent)
        os.fsync(descriptor)


def same_file(known: Path, path: Path, mode: int = 0o644) -> None:
    """Another name for a file, or a copy of it on a file system without links."""
    try:
        os.link(known, path)
    except OSError:
        write_bytes(path, known.read_bytes(), mode)


def hand_over(descriptor: int, directory: Path) -> None:
    """Give an open file of root's to whom this directory belongs: a service that runs there with fewer rights could not
    read it otherwise."""
    if _is_root():
        _give(descriptor, directory.stat())


def hand_over_folder(folder: Path, directory: Path) -> None:
    """The same, of a folder of root's and the folder's files, the folder last."""
    if _is_root():
        owner = directory.stat()
        with _opened_folder(folder) as inside:
            _give_files(inside, owner)
            _give(inside, owner)


def hand_over_files(folder: Path) -> None:
    """Give root's files in a folder to whom the folder belongs, and nobody else: who names it may not own it."""
    if _is_root():
        with _opened_folder(folder) as inside:
            _give_files(inside, os.fstat(inside))


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _give(descriptor: int, owner: os.stat_result) -> None:
    os.fchown(descriptor, owner.st_uid, owner.st_gid)


@contextmanager
def _opened_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _give_files(folder: int, owner: os.stat_result) -> None:
    """Somebody may put other things in the files' place meanwhile: no link is followed."""
    with ExitStack() as stack:
        for name in os.listdir(folder):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
            stack.callback(os.close, descriptor)
            _give(descriptor, owner)


def make_directory(directory: Path, mode: int = 0o777) -> None:
    """Make a directory, and those above it that are missing, so that they outlast a power cut. A name is synced with
    the directory that it stands in. A directory that the caller may not read is left to whoever made it."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(mode=mode, parents=True, exist_ok=True)
    for path in missing or [directory]:  # whoever made it may have been killed before the sync
        with suppress(PermissionError):
            sync_directory(path.parent)
