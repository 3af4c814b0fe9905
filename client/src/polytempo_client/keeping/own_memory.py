"""What a client keeps from one task to the next: its own models. A client that was killed goes on as if it had not
been, whenever that was.

The result of a training counts when the server has taken it, and a client may be killed before it is told. So both are
kept while a result is on its way: what the client remembered before, and what it remembers if the result counts. Every
task says whose result was taken last, and that decides."""

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from polytempo_client.disk.files import write_bytes
from polytempo_client.disk.reading import memory_limit, read_plain
from polytempo_client.keeping.digests import digest_of
from polytempo_client.keeping.kept_task import begins_without
from polytempo_client.logs import log
from polytempo_client.personal.rule import NO_VECTOR, ClientMemory
from polytempo_client.protocol.bodies import entry_of, make_body, read_body
from polytempo_client.protocol.wire_pb2 import Welcome

FORMAT = 1
NOW, NEXT = "now", "next"


class Remembered(NamedTuple):
    """What a client remembers at one moment."""

    memory: ClientMemory | None = None
    """Under the personal rule: its own models."""
    alone: np.ndarray | None = None
    """The model that it trains alone (``join --shadow``), ..."""
    rounds: int = 0
    """... and how often it has trained it."""


class OwnMemory:
    """One client's memory, in a file if it is to outlast the process. Whoever uses the file has locked it."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._whose: list[Any] = []
        self._now = Remembered()
        self._next: tuple[int, Remembered] | None = None
        """A task, and what the client remembers once its result is taken."""

    def open(self, welcome: Welcome) -> None:
        """Read the file, if there is one, as soon as the server has said which client this is."""
        whose = [welcome.client, welcome.seed, list(welcome.names), [list(shape.sizes) for shape in welcome.shapes]]
        whose += [welcome.frozen] if welcome.frozen else []
        if whose == self._whose:
            return
        self._whose, self._now, self._next = whose, Remembered(), None
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def as_of(self, answered: int) -> Remembered:
        """What the client remembers if this is its last task whose result was taken."""
        if self._next is not None and self._next[0] == answered:
            self._now, self._next = self._next[1], None
        return self._now

    def prepare(self, task: int, then: Remembered) -> None:
        """Before a result leaves: what the client remembers once the server has taken it."""
        self._next = task, then
        if self._path is not None:
            self._write(self._path)

    # The file: one line of JSON, and the arrays as safetensors.

    def _write(self, path: Path) -> None:
        """Only its owner can read it. If it cannot be written, that is logged: the client can do without."""
        task, then = (0, None) if self._next is None else self._next
        moments = {NOW: self._now} | ({} if then is None else {NEXT: then})
        arrays = {f"{name}/{part}": array for name, kept in moments.items() for part, array in _arrays(kept).items()}
        body = b"".join(
            make_body(tuple(entry_of(name, array) for name, array in arrays.items()), list(arrays.values()))
        )
        about = {
            "format": FORMAT,
            "whose": self._whose,
            "task": task,
            "moments": {name: _numbers(kept) for name, kept in moments.items()},
            "digest": digest_of(body),
        }
        try:
            write_bytes(path, json.dumps(about).encode() + b"\n" + body, 0o600)
        except OSError as error:
            log("memory not kept", level=logging.WARNING, file=str(path), reason=str(error))

    def _read(self, path: Path) -> None:
        try:
            line, _, body = read_plain(path, memory_limit()).partition(b"\n")
            about: dict[str, Any] = json.loads(line)
            if about["format"] != FORMAT or about["digest"] != digest_of(body):
                raise ValueError
            arrays = read_body(body)
            found = {name: _remembered(name, arrays, about["moments"][name]) for name in about["moments"]}
            if about["whose"] != self._whose:
                reason = f"{path} is the memory of another client, or of another model"
            else:
                self._now = found[NOW]
                self._next = (int(about["task"]), found[NEXT]) if NEXT in found else None
                return
        except OSError as error:
            reason = f"{path} cannot be read: {error.strerror}"
        except Exception:  # json and safetensors have their own for what they cannot read
            reason = f"{path} holds no client's memory: it is damaged, of another version, or something else"
        log("memory unreadable", level=logging.WARNING, reason=f"{reason}. {begins_without(path)}")


def memory_path(keep: Path) -> Path:
    """Where the memory of a client lies that keeps its open task in this file."""
    return keep.with_name(f"{keep.name}.memory")


def _arrays(kept: Remembered) -> dict[str, np.ndarray]:
    memory, alone = kept.memory, {} if kept.alone is None else {"alone": kept.alone}
    if memory is None:
        return alone
    return {"own": memory.own, "average": memory.average, "known": memory.known, "private": memory.private} | alone


def _numbers(kept: Remembered) -> dict[str, Any]:
    return {"rounds": kept.rounds, "numbers": {} if kept.memory is None else kept.memory.numbers}


def _remembered(name: str, arrays: dict[str, np.ndarray], numbers: dict[str, Any]) -> Remembered:
    own, alone = arrays.get(f"{name}/own"), arrays.get(f"{name}/alone")
    memory = None
    if own is not None:
        average, known = arrays[f"{name}/average"], arrays[f"{name}/known"]
        memory = ClientMemory(own, average, known, numbers["numbers"], arrays.get(f"{name}/private", NO_VECTOR))
    return Remembered(memory, alone, numbers["rounds"])
