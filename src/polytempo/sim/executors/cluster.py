"""A Ray cluster: one of this machine's own, which ends with the run, or one that is there already."""

import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polytempo.core.errors import PassingError, UserError
from polytempo.core.threads import cores

LOCAL = "ray"
"""The word of an executor on a cluster that is started here."""
AT = "ray:"
"""Before the address of a cluster that is there."""
SECONDS = 10.0
"""To wait for an answer at an address."""

_connection: dict[str, str] = {}
"""The word of the executor whose cluster this process is at, if it was connected here."""
_lock = threading.Lock()
_users = 0
"""Runs of this process, in whatever thread, that are at that cluster."""
_QUIET = {"RAY_BACKEND_LOG_LEVEL": "error"}
_PRIVATE = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""The environment of a cluster of this machine's own: it sends no statistics, and listens on the loopback only."""


def check_executor(word: str) -> str:
    """The word for an executor, if it is one."""
    address = word.removeprefix(AT)
    if word in ("threads", LOCAL) or (word.startswith(AT) and address):
        return word
    raise ValueError(f"executor is {word!r}. Expected threads, ray, or ray:ADDRESS, such as ray:10.0.0.1:6379")


@contextmanager
def connected(word: str, workers: int | None = None) -> Iterator[None]:
    """Have the cluster that an executor's word names while the block runs. What was connected before stays so. What
    is connected here lasts until the last such block ends, in whatever thread."""
    global _users
    if word == "threads":
        yield
        return
    with _lock:
        ray = _import_ray(word)
        if not ray.is_initialized():
            _begin(ray, word, workers)
        elif _connection.get("word", word) != word:
            raise UserError(
                f"This process is at the Ray cluster of executor {_connection['word']}. Expected the same, or {word} "
                "in a process of its own."
            )
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _connection and not _users:
                _connection.clear()
                ray.shutdown()


def free_cpus() -> int:
    """Of the cluster that is connected, with those of other runs of this process, which come free when these end. A run
    of another process that ended there a moment ago may not have let go of its own yet."""
    import ray

    from polytempo.sim.executors import idle

    until = time.monotonic() + SECONDS
    while not (free := idle.of_this_process() + int(ray.available_resources().get("CPU", 0))):
        if time.monotonic() > until:
            raise PassingError(
                "No CPU of the Ray cluster is free. Wait until other runs there end, or add nodes with ray start."
            )
        time.sleep(0.1)
    return free


def _begin(ray: Any, word: str, workers: int | None) -> None:
    """Start a cluster, or go to one."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if word == LOCAL:
        with _environment(_PRIVATE):
            ray.init(address="local", num_cpus=workers or cores(), include_dashboard=False, **quiet)
    else:
        _connect(ray, word.removeprefix(AT), quiet)
    _connection["word"] = word


def _import_ray(word: str) -> Any:
    """Ray reads some of its environment when it is imported."""
    try:
        with _environment(_QUIET | (_PRIVATE if word == LOCAL else {})):
            if word != LOCAL and _has_token():
                os.environ.setdefault("RAY_AUTH_MODE", "token")
            import ray
    except ImportError:
        raise UserError(f"executor {word} needs Ray. Install it: pip install 'polytempo[ray]'.") from None
    return ray


def _connect(ray: Any, address: str, quiet: Mapping[str, Any]) -> None:
    """Ray itself would wait for a minute for a cluster that is not there, and write about it."""
    host, colon, port = address.rpartition(":")
    if colon and "//" not in address:
        if not port.isdigit():
            raise UserError(f"The address of a Ray cluster is {address!r}. Expected HOST:PORT, or auto.")
        try:
            socket.create_connection((host, int(port)), SECONDS).close()
        except OSError as error:
            raise _nobody(address, error) from None
    try:
        ray.init(address=address, **quiet)
    except ConnectionError as error:
        if "InvalidAuthToken" in f"{error} {error.__cause__}":
            raise UserError(
                f"The Ray cluster at {address} asks for a token. Give that of its head node: RAY_AUTH_MODE=token, and "
                "the token in RAY_AUTH_TOKEN or ~/.ray/auth_token."
            ) from None
        raise _nobody(address, error) from None
    except (RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UserError(f"The Ray cluster at {address} cannot be used: {_first_sentence(error)}") from None


def _has_token() -> bool:
    """Is there a token for clusters, where Ray looks for one?"""
    named = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    return named or (Path.home() / ".ray" / "auth_token").exists()


def _nobody(address: str, error: Exception) -> PassingError:
    return PassingError(
        f"No Ray cluster answers at {address} ({_first_sentence(error)}). Start one there (ray start --head), or give "
        "another address (--executor ray:HOST:PORT)."
    )


def _first_sentence(error: Exception) -> str:
    return " ".join(str(error).split(". ")[0].split()) or type(error).__name__


@contextmanager
def _environment(names: Mapping[str, str]) -> Iterator[None]:
    """Some variables, where they are not set already."""
    added = {name: value for name, value in names.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
