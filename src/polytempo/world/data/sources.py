"""Where data sets come from: the table of known ones, the files each expects, and what all readers share."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from polytempo.core.errors import UserError
from polytempo.core.registry import Registry
from polytempo.world.dataset import Dataset


@dataclass(frozen=True)
class Download:
    """One file of a mirror."""

    path: str
    """Below the mirror's address and, unless it is an archive, below the data directory."""
    md5: str | None = None
    """The published checksum. None: the mirror's own ``SHA256SUMS``, next to the file, counts."""
    unpack_to: str | None = None
    """For an archive: the folder of the data directory into which it is unpacked."""


@dataclass(frozen=True)
class Source:
    """A known data set: what it is, how it is read, which files it needs."""

    summary: str
    load: Callable[[Path], Dataset]
    """Reads it from the data directory. Raises FileNotFoundError where a file is missing."""
    files: tuple[str, ...] = ()
    """The files expected below the data directory, in words where there are many."""
    downloads: tuple[Download, ...] = ()


datasets: Registry[Source] = Registry("data set")
"""The known data sets. The package fills it from the ``SOURCES`` of its modules."""


def default_data_dir() -> Path:
    """``$POLYTEMPO_DATA``, or ``polytempo`` in the user's cache directory."""
    if chosen := os.environ.get("POLYTEMPO_DATA"):
        return expanded(Path(chosen))
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "polytempo"


def expanded(path: Path) -> Path:
    """The path with ``~`` and ``~user`` replaced by the home directory."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise UserError(f"Path {path}: there is no home directory {path.parts[0]}. Write the path out.") from None


def files_wanted(source: Source, data_dir: Path) -> str:
    """The source's files with their full paths, one per line."""
    return "\n".join(f"  {data_dir / file}" for file in source.files)


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Turn whatever goes wrong while this file is read into an error that names it. A missing file stays a
    FileNotFoundError: what to do about it depends on the data set."""
    try:
        yield
    except (FileNotFoundError, UserError):
        raise
    except Exception as error:  # readers of damaged files raise nearly anything
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        reason = f"{error} is missing" if isinstance(error, KeyError) else reason
        raise UserError(
            f"{path} cannot be read: {reason}. Expected {expected}. "
            "If the file is truncated or damaged, replace it by a fresh copy."
        ) from error


def normalised(
    parts: Sequence[np.ndarray], mean: Sequence[float], std: Sequence[float], top: float = 255
) -> np.ndarray:
    """Images (each part samples x channels x height x width, values 0 .. top) one after the other as float32
    ``(value / top - mean) / std``, with a mean and a standard deviation per channel. Makes no copy but the result."""
    x = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), np.float32)
    begin = 0
    for part in parts:
        rows = x[begin : begin + len(part)]
        for channel, (m, s) in enumerate(zip(mean, std, strict=True)):
            target = rows[:, channel]
            np.multiply(part[:, channel], np.float32(1 / (top * s)), out=target, dtype=np.float32, casting="unsafe")
            target -= np.float32(m / s)
        begin += len(part)
    return x


def joined(parts: list[np.ndarray]) -> np.ndarray:
    """The arrays one after the other. Empties the list while it copies, so that memory is not needed twice."""
    whole = np.empty((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    end = len(whole)
    while parts:
        part = parts.pop()
        whole[end - len(part) : end] = part
        end -= len(part)
    return whole


def check_labels(y: np.ndarray, classes: int, first: int = 0) -> None:
    """Labels must be 0 .. classes - 1. ``first`` is what 0 is called in the file."""
    if len(y) and not (y.min() >= 0 and y.max() < classes):
        raise ValueError(f"it has labels from {y.min() + first} to {y.max() + first}")
