"""Processes of the connected cluster that no run has at the moment. The next run in this process need not wait until
new ones have begun."""

import threading
from collections.abc import Iterable
from typing import Any

import ray

_actors: dict[str, list[Any]] = {}
"""By the connection that they belong to."""


_lock = threading.Lock()


def keep(actors: Iterable[Any]) -> None:
    """These are idle now."""
    with _lock:
        _of_this_connection().extend(actors)


def take(most: int) -> list[Any]:
    """Idle ones, which are so no longer."""
    with _lock:
        there = _of_this_connection()
        taken, there[:] = there[:most], there[most:]
        return taken


def count() -> int:
    return len(_of_this_connection())


def end() -> None:
    """Let go of all, so that others may have their CPUs."""
    for actor in take(count()):
        ray.kill(actor)


def _of_this_connection() -> list[Any]:
    connection = ray.get_runtime_context().get_job_id()
    if connection not in _actors:
        _actors.clear()
    return _actors.setdefault(connection, [])
