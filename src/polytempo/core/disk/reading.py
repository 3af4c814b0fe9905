"""Files that somebody else may have written. They have to be plain files, and what they become has to fit into memory:
a pipe would keep its reader waiting, and a few kilobytes may claim to be terabytes."""

import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format

from polytempo_client.disk.reading import memory_limit, open_plain

HEADER_BYTES = 1 << 14
"""Most bytes of an array's header. Numpy reads no longer ones."""


def check_memory(size: int, what: str, on_disk: int = 0) -> None:
    """ValueError if so many bytes are too many for this machine, and more than lie on disk: a large file is honest
    about what it takes."""
    if size > max(memory_limit(), on_disk):
        raise ValueError(f"{what} would take {size:,} bytes of memory, and at most {memory_limit():,} are given to it")


def bytes_on_disk(file: IO[bytes]) -> int:
    """Of a plain file. A sparse one has fewer than its size."""
    found = os.fstat(file.fileno())
    blocks = getattr(found, "st_blocks", None)  # of 512 bytes; not on Windows
    return found.st_size if blocks is None else min(found.st_size, 512 * blocks)


def read_npy(path: Path) -> np.ndarray:
    """The array of an .npy file. OSError or ValueError say what is wrong with it."""
    with open_plain(path) as file, _npy_errors():
        if file.read(2) == b"PK":
            raise ValueError("it is an archive, not one array")
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        _check_header(file, size, "the array")
        check_memory(size, "the array", bytes_on_disk(file))
        file.seek(0)
        return _read_array(file)


def read_npz(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Those of the named arrays that an .npz file has. OSError or ValueError say what is wrong with it."""
    with open_plain(path) as file, _npy_errors(), zipfile.ZipFile(file) as archive:
        members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
        wanted = {name: members[name] for name in names if name in members}
        check_memory(sum(one.file_size for one in wanted.values()), "what it holds", bytes_on_disk(file))
        found = {}
        for name, member in wanted.items():
            with archive.open(member) as opened:
                _check_header(opened, member.file_size, name)
            with archive.open(member) as opened:
                found[name] = _read_array(opened)
        return found


def npz_names(path: Path, most: int = 20) -> str:
    """What the first arrays of an .npz file are called, for a message."""
    with open_plain(path) as file, _npy_errors(), zipfile.ZipFile(file) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist()]
    return ", ".join(names[:most] + ["..."] * (len(names) > most)) or "no arrays"


@contextmanager
def _npy_errors() -> Iterator[None]:
    """Readers of damaged files raise nearly anything."""
    try:
        yield
    except (OSError, ValueError):
        raise
    except zipfile.BadZipFile as error:
        raise ValueError(f"it is no .npz ({error})") from None
    except Exception as error:
        raise ValueError(f"it cannot be understood: {str(error) or type(error).__name__}") from None


def _check_header(file: IO[bytes], size: int, what: str) -> None:
    """ValueError if the array in a stream of so many bytes claims more than these, or is none of numbers."""
    file = BytesIO(file.read(HEADER_BYTES))  # a header may claim to have gigabytes, which would be reserved
    version = format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{what} is of an unknown version of the format")
    shape, _, dtype = (format.read_array_header_1_0 if version == (1, 0) else format.read_array_header_2_0)(file)
    if dtype.hasobject:
        raise ValueError(f"{what} holds Python objects (allow_pickle), not numbers")
    if max(dtype.itemsize, 1) * prod(shape) > size:
        raise ValueError(f"{what} claims the shape {shape}, which is more than the file holds")


def _read_array(file: IO[bytes]) -> np.ndarray:
    array: np.ndarray = format.read_array(file, allow_pickle=False)
    return array
