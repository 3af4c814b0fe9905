"""Messages from a connection, within limits: who sends slowly, too much, or nothing cannot hold memory."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc.aio
from google.protobuf.message import DecodeError

from polytempo.serve.operations import Limits
from polytempo.serve.wire import FRAME_BYTES, Assembler, WireError
from polytempo.serve.wire_pb2 import Frame, Head


class BusyError(Exception):
    """The server has no memory for this message now."""


class Memory:
    """Bytes of messages that have come in part, or wait for their answer, over all sessions."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, count: int, limit: int) -> None:
        if self.taken + count > limit:
            raise BusyError
        self.taken += count

    def give(self, count: int) -> None:
        self.taken -= count


class Pace:
    """Lets one second's worth of requests through at once, and then so many a second."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self._last = 0.0

    def pause(self, now: float, per_second: float) -> float:
        """Seconds that the request that has just come has to wait."""
        self._ahead = max(self._ahead - (now - self._last) * per_second, 0.0) + 1.0
        self._last = now
        return max(self._ahead - max(per_second, 1.0), 0.0) / per_second


def size_of(head: Head, body: bytes | bytearray) -> int:
    """Bytes that a message, or a part of one, takes."""
    return head.ByteSize() + len(body)


class Incoming:
    """One session's messages. ``held`` is what it holds of the server's memory."""

    def __init__(self, read: Callable[[], Any], limits: Callable[[], Limits], largest: int, memory: Memory) -> None:
        self._read, self._limits, self._memory = read, limits, memory
        self._assembler = Assembler(limits().message_bytes or largest)
        self._greeted = False
        self.held = 0

    async def message(self) -> tuple[Head, bytearray] | None:
        """The next whole message; None when there will be no more. The first has to come at once; after it a client may
        be silent for as long as it likes, but what it has begun to say it has to finish."""
        limits, loop = self._limits(), asyncio.get_running_loop()
        deadline = None if self._greeted else loop.time() + limits.hello_seconds
        began, received, bought = 0.0, 0, 0.0
        while True:
            try:
                frame: Frame | Any = await self._next_frame(deadline)
            except TimeoutError:
                slow = f"only {received} bytes of a message have come in {loop.time() - began:.0f} s"
                raise WireError(slow if received else "nothing was said in time") from None
            except DecodeError:
                raise WireError("what came is no frame of ours") from None
            if frame is grpc.aio.EOF:
                return None
            if not received:
                began = loop.time()
                bought = began + limits.slow_seconds
            count = size_of(frame.head, frame.data)
            self._memory.take(count, limits.memory_bytes)
            self.held += count
            received += count
            whole = self._assembler.add(frame)
            if whole is not None:
                self._greeted = True
                return whole
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

    def answered(self, count: int) -> None:
        """A message of so many bytes is not needed any more."""
        self.held -= count
        self._memory.give(count)

    def close(self) -> None:
        self.answered(self.held)
