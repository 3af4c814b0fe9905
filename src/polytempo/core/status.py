"""What a client is doing, as its driver sees it."""

from enum import IntEnum


class Status(IntEnum):
    AWAY = 0
    PAUSED = 1
    """With something of its own: it will say when it is ready."""
    READY = 2
    TRAINING = 3
