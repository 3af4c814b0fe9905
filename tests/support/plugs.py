"""Runs whose plug is pulled: they end between two events, as if the machine had."""

from collections.abc import Callable


class PulledPlugError(Exception):
    pass


def pulled_after(events: int) -> Callable[..., None]:
    """Called after each event, or with each progress; pulls the plug at the last of so many calls."""
    count = 0

    def tick(*_: object) -> None:
        nonlocal count
        count += 1
        if count >= events:
            raise PulledPlugError

    return tick
