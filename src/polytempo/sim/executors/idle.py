"""Processes of the connected cluster that no run has at the moment. The next run in this process need not wait until
new ones have begun. Where several runs go on at once, in threads, one that ends lets go of its processes: they would
hold CPUs that the others wait for."""

import threading
from collections.abc import Sequence
from typing import Any

import ray

_actors: dict[str, list[Any]] = {}
"""By the connection that they belong to."""
_wanted = 0
"""Processes that runs have, or wait for."""
_lock = threading.Lock()


def take(wanted: int) -> list[Any]:
    """For a run that wants so many: those that are idle, which are so no longer."""
    global _wanted
    with _lock:
        _wanted += wanted
        return _taken(wanted)


def give_back(wanted: int, actors: Sequence[Any]) -> None:
    """A run that wanted so many ends. These of them are at work no longer."""
    global _wanted
    with _lock:
        _wanted -= wanted
        if not _wanted:
            _of_this_connection().extend(actors)
            return
    for actor in actors:
        ray.kill(actor)


def of_this_process() -> int:
    """Processes that are idle, and those that runs have or wait for."""
    with _lock:
        return len(_of_this_connection()) + _wanted


def end() -> None:
    """Let go of all that are idle, so that others may have their CPUs."""
    with _lock:
        taken = _taken(len(_of_this_connection()))
    for actor in taken:
        ray.kill(actor)


def _taken(most: int) -> list[Any]:
    there = _of_this_connection()
    taken, there[:] = there[:most], there[most:]
    return taken


def _of_this_connection() -> list[Any]:
    connection = ray.get_runtime_context().get_job_id()
    if connection not in _actors:
        _actors.clear()
    return _actors.setdefault(connection, [])
