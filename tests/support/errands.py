"""A worker that trains nothing, for tests of executors. What it does leaves traces in files, which any
process can write."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Errand:
    """A computation."""

    def tensors(self) -> list[Tensor]:
        return []


@dataclass(frozen=True)
class Square(Errand):
    number: int


@dataclass(frozen=True)
class Note(Errand):
    """Write down that it has begun."""

    book: Path
    word: str


@dataclass(frozen=True)
class Gate(Errand):
    """Wait until somebody opens the other end of a named pipe."""

    pipe: Path


class StubbornError(Exception):
    """Can be raised, and cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError


@dataclass(frozen=True)
class Broken(Errand):
    """Raise an error; None: a stubborn one."""

    error: BaseException | None


@dataclass(frozen=True)
class Deadly(Errand):
    """Kill the process, or do so once: the next one finds a mark."""

    mark: Path | None


@dataclass(frozen=True)
class Sum(Errand):
    """Add a model to the worker's data. The same model may be part of other errands."""

    model: Tensor
    private: Tensor = field(default_factory=lambda: torch.zeros(0))

    def tensors(self) -> list[Tensor]:
        return [self.model]


class Errands:
    """Carries them out."""

    def __init__(self) -> None:
        self.data = {"x": torch.arange(100_000.0)}

    def do(self, errand: Any) -> Any:
        if isinstance(errand, Square):
            return errand.number**2
        if isinstance(errand, Note):
            with errand.book.open("a") as book:
                book.write(errand.word + "\n")
        if isinstance(errand, Gate):
            with errand.pipe.open() as pipe:
                return pipe.read()
        if isinstance(errand, Broken):
            raise errand.error or StubbornError("a message")
        if isinstance(errand, Sum):
            return errand.model, errand.model + self.data["x"], errand.private
        if isinstance(errand, Deadly) and (errand.mark is None or not errand.mark.exists()):
            if errand.mark is not None:
                errand.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return None


def pipe_in(directory: Path) -> Path:
    """A named pipe for a gate."""
    path = directory / "gate"
    os.mkfifo(path)
    return path


def noted(book: Path) -> list[str]:
    """What has begun, in order."""
    return book.read_text().split() if book.exists() else []
