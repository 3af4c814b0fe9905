"""What a client wants of the host, and the connection over which it gets its reply."""

import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from polytempo.serve.server.messages import Message
from polytempo_client.protocol.wire_pb2 import Head

GROUP = 256
"""Requests that are journalled with one sync, at most, ..."""
GROUP_BYTES = 16 << 20
"""... and their bytes: the network goes on with others meanwhile."""
RESTARTS = "the server restarts"
TAKES_OVER = "another server takes over"
"""Why a client has to come again."""

RequestKind = Literal["hello", "ready", "push", "pull", "leave", "branch"]
"""What a client may want."""
AnyKind = RequestKind | Literal["wire", "gone", "expelled"]
"""... and what the network tells of it."""


class Session(Protocol):
    """A client's connection, as the host sees it: messages are handed over and sent when they can be."""

    client: int
    download: str
    """How models are encoded for it."""
    certificate_expires: float | None
    """When the certificate that it has shown ends, in seconds since 1970."""

    def send(self, message: Message, request: int = 0) -> None: ...

    def end(self) -> None:
        """Close the connection after what was sent."""


@dataclass(frozen=True, slots=True)
class Request:
    """Something that a client wants, or that was wrong with what it sent (``wire``), or that its connection is gone,
    by itself or because it may not talk to the server any more (``expelled``)."""

    session: Session
    kind: AnyKind
    head: Head
    body: bytearray
    problem: str = ""
    release: Callable[[], None] = lambda: None
    """Called when the host has dealt with it: the memory that the message holds is free again."""
    sent_bytes: int = 0
    """Of the message behind its first frame, ..."""
    sent_seconds: float = 0.0
    """... and the time from the first frame's arrival to the last one's."""


def release_all(requests: "queue.SimpleQueue[Request | None]") -> None:
    """Let go of what has arrived and that nobody answers any more."""
    while not requests.empty():
        request = requests.get_nowait()
        if request is not None:
            request.release()


def next_group(requests: "queue.SimpleQueue[Request | None]", seconds: float) -> list[Request]:
    """What has arrived: at least one request, unless none does within so many seconds or a None comes first."""
    group: list[Request] = []
    waiting = 0
    try:
        request = requests.get(timeout=seconds)
        while True:
            if request is not None:
                group.append(request)
                waiting += len(request.body)
            if len(group) >= GROUP or waiting >= GROUP_BYTES:
                break
            request = requests.get_nowait()
    except queue.Empty:
        pass
    return group
