"""What a point is, and what several of them ask for."""

from collections.abc import Callable
from typing import NamedTuple

from polytempo.serve.conform.scene import Scene
from polytempo.serve.conform.stage import NotMetError, Received

Script = Callable[[Scene], None]


class Point(NamedTuple):
    """Something that a client has to do."""

    name: str
    title: str
    script: Script
    """Finds out. It raises NotMetError where the client does not."""


class NotOfferedError(Exception):
    """The client does not offer what the point is about, and need not."""


def point(script: Script) -> Point:
    """A point is named like its script, and the script's docstring says what the client has to do."""
    return Point(script.__name__.replace("_", "-"), (script.__doc__ or "").strip(), script)


def check_in_hand(hello: Received, task: int, heeded: int) -> None:
    """A hello has to say which task the client has, and which of its orders it was sent last."""
    said = hello.head.hello
    if (said.task, said.heeded) != (task, heeded):
        raise NotMetError(
            f"its hello says task {said.task}, heeded {said.heeded}; it has task {task} in hand, and the last order of "
            f"it that it was sent has number {heeded}"
        )
