"""A client's open task in a file, so that a client that was off goes on from the model that it had. One line of JSON
says whose it is, the body of the message follows as it came."""

import base64
import json
import logging
from pathlib import Path
from typing import IO, Any, NamedTuple

from polytempo_client.disk.files import set_aside, write_bytes
from polytempo_client.disk.locks import LockedError, take
from polytempo_client.disk.reading import memory_limit, read_plain
from polytempo_client.errors import KeepError, PassingError, UserError
from polytempo_client.keeping.digests import digest_of
from polytempo_client.logs import log
from polytempo_client.protocol.wire_pb2 import Task, Welcome

FORMAT = 1


class KeptTask(NamedTuple):
    """The message that brought a task, and who sent it to whom."""

    server: str
    """Its address, or several with commas between."""
    welcome: Welcome
    """What the server had said: which client this is, the model's tensors, the seed."""
    task: Task
    body: bytearray

    def void(self, server: str, welcome: Welcome) -> str | None:
        """Why there is no going on with it after this welcome; None if there is."""
        if set(self.server.split(",")).isdisjoint(server.split(",")):
            return f"it is from another server, {self.server}"
        same = ("client", "names", "shapes", "seed", "frozen")
        if any(getattr(self.welcome, name) != getattr(welcome, name) for name in same):
            return "it is of another client or another model"
        return None if self.task.number == welcome.task else "the server waits for it no longer"


def check_folder(path: Path) -> None:
    """The file may be missing, its folder not."""
    if path.is_dir() or not path.parent.is_dir():
        raise UserError(f"A task cannot be kept in {path}: expected a file's name in a folder that is there.")


def claim(path: Path) -> IO[bytes] | None:
    """Keep other processes from this file, until what is returned is closed. Two with one file would go on with each
    other's tasks, and forget them. None where no lock can be written: then no task can be kept either."""
    try:
        lock = path.with_name(f"{path.name}.lock").open("ab")
    except OSError as error:
        log("task not kept", level=logging.WARNING, file=str(path), reason=str(error))
        return None
    try:
        take(lock.fileno(), path)
    except LockedError:
        lock.close()
        raise PassingError(
            f"Another Client or process keeps its task in {path}. Give every client a file and a token of its own, or "
            "wait until that one has ended."
        ) from None
    return lock


def write_kept(path: Path, kept: KeptTask) -> None:
    """Only its owner can read it."""
    about = {
        "format": FORMAT,
        "server": kept.server,
        "welcome": base64.b64encode(kept.welcome.SerializeToString()).decode(),
        "task": base64.b64encode(kept.task.SerializeToString()).decode(),
        "digest": digest_of(kept.body),
    }
    try:
        write_bytes(path, json.dumps(about).encode() + b"\n" + kept.body, 0o600)
    except OSError as error:
        raise KeepError(
            f"The task cannot be kept in {path}: {error.strerror or error}. Make room, or make the file and its folder "
            "writable. The task is open all the same, and nothing that the server acknowledged is lost."
        ) from None


def read_kept(path: Path) -> KeptTask | None:
    """The task in the file; None if there is none. A file that holds something else is logged and set aside."""
    if not path.exists():
        return None
    try:
        line, _, body = read_plain(path, memory_limit()).partition(b"\n")
        about: dict[str, Any] = json.loads(line)
        if about["format"] != FORMAT or about["digest"] != digest_of(body):
            raise ValueError
        welcome, task = (base64.b64decode(about[name], validate=True) for name in ("welcome", "task"))
        return KeptTask(about["server"], Welcome.FromString(welcome), Task.FromString(task), bytearray(body))
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror}"
    except Exception:  # json, base64 and protobuf have their own for what they cannot read
        reason = f"{path} holds no kept task: it is damaged, of another version, or something else"
    log("kept task unreadable", level=logging.WARNING, reason=f"{reason}. {begins_without(path)}")
    return None


def begins_without(path: Path) -> str:
    """Set a file aside that is not this client's, and say so."""
    aside = set_aside(path)
    return "The client begins without it." + (f" The file is now {aside.name}." if aside else "")


def forget(path: Path) -> None:
    """There is nothing to go on with."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log("kept task not removed", level=logging.WARNING, file=str(path), reason=str(error))
