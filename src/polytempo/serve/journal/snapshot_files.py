"""Snapshots as files: which there is, whether it is still what was written, and which files nobody needs."""

import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError

from polytempo.core.state import load
from polytempo.serve.journal.database import DamagedError
from polytempo.serve.paths import STATUS


@dataclass(frozen=True)
class Snapshot:
    """A state as a file."""

    number: int
    """Of the event that it was taken after."""
    size: int
    crc: int

    @classmethod
    def of(cls, directory: Path, number: int) -> "Snapshot":
        path = directory / snapshot_name(number)
        return cls(number, path.stat().st_size, _crc(path))

    def read(self, directory: Path) -> dict[str, Any]:
        """The state, if the file has not changed."""
        path = directory / snapshot_name(self.number)
        try:
            if path.stat().st_size != self.size or _crc(path) != self.crc:
                raise DamagedError(directory, self.number, f"{path.name} has changed since it was written")
            return cast("dict[str, Any]", load(path))
        except OSError as error:
            raise DamagedError(directory, self.number, f"{path.name}: {error.strerror}") from None
        except (SafetensorError, LookupError, TypeError, ValueError) as error:
            raise DamagedError(directory, self.number, f"{path.name} is not understood: {error!r}") from None


def snapshot_name(number: int) -> str:
    return f"snapshot-{number:012d}.safetensors"


def remove_others(directory: Path, used: Collection[str]) -> None:
    """Remove snapshots and bodies that are not in use: by name, so that what a crash left half done goes too."""
    for pattern in ("updates-*.bodies", "snapshot-*.safetensors", ".snapshot-*", f".{STATUS}.*"):
        for path in directory.glob(pattern):
            if path.name not in used:
                path.unlink(missing_ok=True)


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            crc = zlib.crc32(chunk, crc)
    return crc
