"""Snapshots as files: which there is, whether it is still what was written, and which files nobody needs."""

import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError

from polytempo.core.state import load
from polytempo.serve.journal.store import Snapshot
from polytempo.serve.paths import STATUS
from polytempo.serve.storage.errors import DamagedError

UNUSED = ("updates-*.bodies", "snapshot-*.safetensors", ".snapshot-*", f".{STATUS}.*")
"""Files that go when no row speaks of them: by name, so that what a crash left half done goes too."""
LEFT_BEHIND = ("updates-*", "snapshot-*", ".snapshot-*")
"""Files that may hold what clients handed in."""


def snapshot_of(directory: Path, number: int) -> Snapshot:
    """What was written to its file."""
    path = directory / snapshot_name(number)
    return Snapshot(number, path.stat().st_size, _crc(path))


def read_snapshot(snapshot: Snapshot, directory: Path) -> dict[str, Any]:
    """The state, if the file has not changed."""
    path = directory / snapshot_name(snapshot.number)
    try:
        if path.stat().st_size != snapshot.size or _crc(path) != snapshot.crc:
            raise DamagedError(directory, snapshot.number, f"{path.name} has changed since it was written")
        return cast("dict[str, Any]", load(path))
    except OSError as error:
        raise DamagedError(directory, snapshot.number, f"{path.name}: {error.strerror}") from None
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise DamagedError(directory, snapshot.number, f"{path.name} is not understood: {error!r}") from None


def snapshot_name(number: int) -> str:
    return f"snapshot-{number:012d}.safetensors"


def remove_others(directory: Path, patterns: Collection[str], used: Collection[str] = ()) -> None:
    """Remove the files of these names that are not in use."""
    for pattern in patterns:
        for path in directory.glob(pattern):
            if path.name not in used:
                path.unlink(missing_ok=True)


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            crc = zlib.crc32(chunk, crc)
    return crc
