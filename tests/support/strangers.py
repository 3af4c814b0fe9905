"""Sessions without manners: they send what the test says, and read only when it says."""

import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc

from polytempo_client.protocol.framing import CLIENT_OPTIONS, SESSION, Assembler, Buffer, frames
from polytempo_client.protocol.wire_pb2 import Frame, Head, Hello, Push


class Stranger:
    """One session over a connection of its own."""

    def __init__(self, address: str, token: str, seconds: float) -> None:
        self._channel = grpc.insecure_channel(address, CLIENT_OPTIONS)
        self._outbox: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        open_session = self._channel.stream_stream(SESSION, Frame.SerializeToString, Frame.FromString)
        sent = iter(self._outbox.get, None)
        metadata = (("authorization", f"Bearer {token}"),)
        self.call: Any = open_session(sent, metadata=metadata, timeout=seconds)
        self._assembler = Assembler()
        self._requests = 0

    def send(self, *sent: Frame) -> None:
        for frame in sent:
            self._outbox.put(frame)

    def say(self, head: Head, body: Sequence[Buffer] = ()) -> int:
        """A whole message; its number."""
        self._requests += 1
        head.request = self._requests
        self.send(*frames(head, body))
        return self._requests

    def hello(self) -> None:
        number = self.say(Head(hello=Hello()))
        assert self.read().answers == number

    def read(self) -> Head:
        """The next message."""
        while True:
            whole = self._assembler.add(next(self.call))
            if whole is not None:
                return whole[0]

    def end(self) -> tuple[list[Head], grpc.StatusCode]:
        """What comes until the server ends the session, and how it ends."""
        heard = []
        try:
            while True:
                heard.append(self.read())
        except (StopIteration, grpc.RpcError):
            return heard, self.call.code()

    def close(self) -> None:
        self._outbox.put(None)
        self.call.cancel()
        self._channel.close()


@contextmanager
def stranger(address: str, token: str, seconds: float = 60.0) -> Iterator[Stranger]:
    """``seconds``: how long the session may take, at most."""
    opened = Stranger(address, token, seconds)
    try:
        yield opened
    finally:
        opened.close()


def begun(size: int, sent: int, **head: Any) -> Frame:
    """The beginning of a message of which the rest never comes."""
    return Frame(head=Head(request=99, size=size, **(head or {"push": Push()})), data=b"x" * sent)
