"""Files that a crash or a power cut leaves whole: the old content or the new, never a part."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path


def write_whole(path: Path, write: Callable[[Path], None], mode: int = 0o644, *, durable: bool = True) -> None:
    """Replace ``path`` by a file that ``write`` fills. If ``write`` fails, ``path`` stays as it is. ``durable``: the
    new file outlasts a power cut, which takes a sync of the disk."""
    with _replacing(path, durable) as (descriptor, temporary):
        os.close(descriptor)
        write(temporary)
        temporary.chmod(mode)
        if durable:
            with temporary.open("r+b") as file:
                os.fsync(file.fileno())


def write_bytes(path: Path, content: bytes, mode: int = 0o644, *, shared: bool = False, durable: bool = True) -> None:
    """Replace ``path`` by a file with this content; nobody can read it before it has its mode. ``shared``: with the
    owner of the directory (``hand_over``). ``durable`` as for ``write_whole``. Nothing is done by name before the
    content is whole: the directory may be somebody else's."""
    with _replacing(path, durable) as (descriptor, _), os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        if hasattr(os, "fchmod"):  # Windows has other rights
            os.fchmod(descriptor, mode)
        if shared:
            hand_over(descriptor, path.parent)
        if durable:
            os.fsync(descriptor)


def same_file(known: Path, path: Path, mode: int = 0o644) -> None:
    """Another name for a file, or a copy of it on a file system without links."""
    try:
        os.link(known, path)
    except OSError:
        write_bytes(path, known.read_bytes(), mode)


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
def _replacing(path: Path, durable: bool) -> Iterator[tuple[int, Path]]:
    """A temporary file, open and by name, that replaces ``path`` when it is done."""
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


def sync_directory(directory: Path) -> None:
    """Make a rename in this directory outlast a power cut. Windows does so by itself."""
    if os.name == "nt":
        return
    opened = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
