"""Messages from a connection, within limits: who sends slowly, too much, or nothing cannot hold memory."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from polytempo.serve.server.operations import Limits
from polytempo_client.errors import WireError
from polytempo_client.protocol.framing import FRAME_BYTES, LARGEST_HEAD, Assembler
from polytempo_client.protocol.wire_pb2 import Frame, Head


class BusyError(Exception):
    """The server has no memory for this message now."""


class Memory:
    """Bytes of messages that have come in part, or that the host has not dealt with, over all sessions."""

    def __init__(self) -> None:
        self.taken = 0
        self.by_client: Counter[int] = Counter()
        self._lock = threading.Lock()

    def take(self, client: int, count: int, limit: int, most: int) -> None:
        """``limit`` is for all clients together, ``most`` for one."""
        with self._lock:
            if self.taken + count > limit or self.by_client[client] + count > most:
                raise BusyError
            self.taken += count
            self.by_client[client] += count

    def give(self, client: int, count: int) -> None:
        with self._lock:
            self.taken -= count
            self.by_client[client] -= count
            if not self.by_client[client]:
                del self.by_client[client]

    def largest(self) -> tuple[int, int] | None:
        """Who holds the most, and how much."""
        with self._lock:
            return next(iter(self.by_client.most_common(1)), None)


class Charge:
    """What one message holds of the memory, until whoever has it last releases it, on any thread."""

    def __init__(self, memory: Memory, client: int) -> None:
        self._memory, self._client, self._count = memory, client, 0

    def add(self, count: int, limit: int, most: int) -> None:
        self._memory.take(self._client, count, limit, most)
        self._count += count

    def release(self) -> None:
        count, self._count = self._count, 0
        self._memory.give(self._client, count)


class RateLimit:
    """Lets one second's worth of requests through at once, and then so many a second."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._last = 0.0

    def take_turn(self, now: float, per_second: float) -> float:
        """Count a request that has just come. Returns the seconds that it has to wait."""
        self._ahead = max(self._ahead - (now - self._last) * per_second, 0.0) + 1.0
        self._last = now
        return max(self._ahead - max(per_second, 1.0), 0.0) / per_second


def size_of(head: Head, body: bytes | bytearray) -> int:
    """Bytes that a message, or a part of one, takes."""
    return head.ByteSize() + len(body)


class Incoming:
    """One session's messages."""

    def __init__(
        self, read: Callable[[], Any], limits: Callable[[], Limits], largest: int, memory: Memory, client: int
    ) -> None:
        self._read, self._limits, self._largest = read, limits, largest
        self._memory, self._client = memory, client
        self._assembler = Assembler()
        self._charge = Charge(memory, client)
        self.greeted = False
        """Has a first message come?"""
        self.sent_bytes, self.sent_seconds = 0, 0.0
        """Of the last whole message: the bytes behind its first frame, and how long they took."""
        self.received = 0
        """Bytes of all frames so far."""

    async def next_message(self) -> tuple[Head, bytearray, Charge] | None:
        """The next whole message, with what it holds of the memory; None when there will be no more. The first has to
        come at once; after it a client may be silent for as long as it likes, but what it has begun to say it has to
        finish."""
        limits, loop = self._limits(), asyncio.get_running_loop()
        largest = limits.message_bytes or self._largest
        deadline = None if self.greeted else loop.time() + limits.hello_seconds
        began, first, received, bought = 0.0, 0, 0, 0.0
        while True:
            try:
                frame: Frame | Any = await self._next_frame(deadline)
            except TimeoutError:
                slow = f"only {received} bytes of a message have come in {loop.time() - began:.0f} s"
                raise WireError(slow if received else "nothing has come in time") from None
            except DecodeError:
                raise WireError("what came is no frame of ours") from None
            if frame is grpc.aio.EOF:
                return None
            if not received:
                began, first = loop.time(), size_of(frame.head, frame.data)
                bought = began + limits.slow_seconds
            count = size_of(frame.head, frame.data)
            # Twice, because a client that comes again may have left half of the same message behind.
            self._charge.add(count, limits.memory_bytes, 2 * (largest + LARGEST_HEAD))
            received += count
            self.received += count
            pushes = self.greeted and frame.head.WhichOneof("kind") == "push"
            whole = self._assembler.add(frame, largest if pushes else 0)
            if whole is not None:
                self.greeted = True
                self.sent_bytes = received - first
                self.sent_seconds = loop.time() - began if self.sent_bytes else 0.0
                charge, self._charge = self._charge, Charge(self._memory, self._client)
                return *whole, charge
            # What has come buys time for what is to come, but only as much as the next frame needs: many bytes at once
            # must not be held through hours of silence.
            slowest = limits.slowest_bytes_per_second
            bought = min(bought + count / slowest, loop.time() + limits.slow_seconds + FRAME_BYTES / slowest)
            deadline = bought

    async def _next_frame(self, deadline: float | None) -> Any:
        if deadline is None:  # almost always, and a timer costs time
            return await self._read()
        async with asyncio.timeout_at(deadline):
            return await self._read()

    def close(self) -> None:
        """What has come of an unfinished message is not needed any more."""
        self._charge.release()
