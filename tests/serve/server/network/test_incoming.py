"""Messages as they come in, on a clock that jumps: how slow they may be, and what they hold of the memory."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc.aio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytempo.serve.server.network.incoming import BusyError, Incoming, Memory, RateLimit, size_of
from polytempo.serve.server.operations import Limits
from polytempo_client.errors import WireError
from polytempo_client.protocol.framing import FRAME_BYTES, frames
from polytempo_client.protocol.wire_pb2 import Frame, Head, Hello, Pull, Push, Ready
from support.strangers import begun
from support.virtual_time import run_virtually

MEGABYTE = 1 << 20


def read_at(bytes_per_second: int, seconds: int, limits: Limits) -> float:
    """A message of so many seconds, a frame each: when it was given up, or had come whole."""

    async def read() -> float:
        size = bytes_per_second * seconds
        rest = iter([begun(size, bytes_per_second)] + [Frame(data=b"x" * bytes_per_second)] * (seconds - 1))

        async def next_second() -> Frame:
            await asyncio.sleep(1.0)
            return next(rest)

        incoming = Incoming(next_second, lambda: limits, size, memory := Memory(), 0)
        incoming.greeted = True
        with suppress(WireError):
            whole = await incoming.next_message()
            assert whole is not None
            assert len(whole[1]) == size
            whole[2].release()
        incoming.close()
        assert memory.taken == 0
        return asyncio.get_running_loop().time()

    return run_virtually(read())


def test_a_trickle_is_given_up_when_the_grace_is_used_up_and_a_slow_line_is_not() -> None:
    limits = Limits(slow_seconds=30.0, slowest_bytes_per_second=4000.0)
    assert read_at(4000, 500, limits) == 500.0
    # The message begins at 1 s, with the first frame. At 41 s 41000 bytes have come, and the head's: the next frame
    # has to be there by 1 + 30 + 41000 / 4000 = 41.25, and would be at 42.
    assert read_at(1000, 500, limits) == pytest.approx(41.25, abs=0.1)


def test_the_arrival_of_a_message_is_timed_from_its_first_frame_to_its_last() -> None:
    async def read() -> tuple[int, float]:
        coming = iter([begun(3000, 1000), *[Frame(data=b"x" * 1000)] * 2])

        async def next_second() -> Frame:
            await asyncio.sleep(1.0)
            return next(coming)

        incoming = Incoming(next_second, Limits, MEGABYTE, Memory(), 0)
        incoming.greeted = True
        assert await incoming.next_message() is not None
        return incoming.sent_bytes, incoming.sent_seconds

    assert run_virtually(read()) == (2000, 2.0)


def test_after_hello_a_client_may_be_silent() -> None:
    async def read() -> float:
        coming = iter([(9.0, Frame(head=Head(request=1, hello=Hello()))), (86_400.0, grpc.aio.EOF)])

        async def next_frame() -> Any:
            silence, frame = next(coming)
            await asyncio.sleep(silence)
            return frame

        incoming = Incoming(next_frame, lambda: Limits(hello_seconds=10.0), MEGABYTE, Memory(), 0)
        assert await incoming.next_message() is not None
        assert await incoming.next_message() is None  # it has gone of its own accord
        return asyncio.get_running_loop().time()

    assert run_virtually(read()) == 86_409.0


def test_many_bytes_at_once_are_not_held_through_hours_of_silence() -> None:
    limits = Limits(slow_seconds=30.0, slowest_bytes_per_second=float(MEGABYTE))

    async def read() -> float:
        coming = iter([begun(100 * MEGABYTE, MEGABYTE), *[Frame(data=b"x" * MEGABYTE)] * 50])

        async def next_frame() -> Frame:
            frame = next(coming, None)
            return await asyncio.Event().wait() if frame is None else frame  # type: ignore[return-value]

        incoming = Incoming(next_frame, lambda: limits, 100 * MEGABYTE, memory := Memory(), 0)
        incoming.greeted = True
        with pytest.raises(WireError, match="bytes of a message have come in"):
            await incoming.next_message()
        assert memory.taken > 51 * MEGABYTE
        incoming.close()
        return asyncio.get_running_loop().time()

    # The grace, and the time of one frame.
    assert run_virtually(read()) == pytest.approx(30.0 + FRAME_BYTES / MEGABYTE)


def test_heads_count_like_bodies() -> None:
    head = Head(push=Push(answers="x" * 10_000))

    async def read() -> None:
        queue = asyncio.Queue[Frame]()
        for frame in frames(head, [b"y" * 500]):
            queue.put_nowait(frame)
        incoming = Incoming(queue.get, Limits, MEGABYTE, memory := Memory(), 0)
        incoming.greeted = True
        whole = await incoming.next_message()
        assert whole is not None
        *message, charge = whole
        assert memory.taken == memory.by_client[0] == size_of(*message) > 10_500
        charge.release()
        charge.release()
        assert memory.taken == 0

    run_virtually(read())


def test_one_client_cannot_take_what_is_there_for_all() -> None:
    memory = Memory()
    memory.take(0, 600, limit=1000, most=700)
    with pytest.raises(BusyError):
        memory.take(0, 200, limit=1000, most=700)
    memory.take(1, 300, limit=1000, most=700)
    with pytest.raises(BusyError):
        memory.take(2, 200, limit=1000, most=700)
    assert memory.largest() == (0, 600)
    memory.give(0, 600)
    memory.give(1, 300)
    assert (memory.taken, memory.largest()) == (0, None)


def test_a_limit_that_has_changed_counts_for_the_next_message() -> None:
    limits = [Limits(), Limits(message_bytes=2000)]
    sent = [frame for _ in range(2) for frame in frames(Head(request=1, push=Push()), [b"x" * 3000])]

    async def read() -> None:
        queue = asyncio.Queue[Frame]()
        for frame in sent:
            queue.put_nowait(frame)
        incoming = Incoming(queue.get, lambda: limits.pop(0), MEGABYTE, Memory(), 0)
        incoming.greeted = True
        assert await incoming.next_message() is not None
        with pytest.raises(WireError, match="a push has 3000 bytes; expected at most 2000 here"):
            await incoming.next_message()

    run_virtually(read())


MESSAGES = st.builds(
    lambda kind, size: list(frames(Head(request=1, **{kind: KINDS[kind]}), [b"x" * size] if size else [])),
    st.sampled_from(["hello", "ready", "push", "pull"]),
    st.integers(0, 3000),
)
KINDS = {"hello": Hello(), "ready": Ready(), "push": Push(answers="y" * 50), "pull": Pull()}
PARTS = st.builds(
    lambda size, sent, head: [Frame(head=Head(push=Push(), size=size) if head else None, data=b"x" * sent)],
    st.integers(0, 5000),
    st.integers(0, 3000),
    st.booleans(),
)


@settings(max_examples=150)
@given(st.lists(MESSAGES | PARTS, max_size=12), st.integers(0, 12), st.sampled_from([3000, 6000, 10**6]))
def test_whatever_comes_memory_stays_within_its_limit_and_is_given_back(
    groups: list[list[Frame]], unanswered: int, limit: int
) -> None:
    limits = Limits.model_construct(**{**dict(Limits()), "memory_bytes": limit, "message_bytes": 4000})
    memory = Memory()

    async def read() -> None:
        coming: Iterator[Frame] = iter([frame for group in groups for frame in group])

        async def next_frame() -> Any:
            await asyncio.sleep(0.1)
            return next(coming, grpc.aio.EOF)

        incoming = Incoming(next_frame, lambda: limits, 4000, memory, 0)
        incoming.greeted = True
        charges = []
        try:
            while (whole := await incoming.next_message()) is not None:
                assert 0 <= memory.taken <= limit
                charges.append(whole[2])
                if len(charges) > unanswered:
                    charges.pop(0).release()
        except (WireError, BusyError):
            assert memory.taken <= limit
        finally:
            incoming.close()
        for charge in charges:
            charge.release()

    run_virtually(read())
    assert memory.taken == 0


def test_a_seconds_worth_passes_at_once_and_then_one_at_a_time() -> None:
    limit = RateLimit()
    assert [limit.take_turn(100.0, 2.0) for _ in range(5)] == [0.0, 0.0, 0.5, 1.0, 1.5]
    assert limit.take_turn(101.5, 2.0) == 0.5  # three of the five are over, and this is the third again
    assert [limit.take_turn(200.0, 2.0) for _ in range(3)] == [0.0, 0.0, 0.5]


def test_less_than_one_request_a_second_is_possible() -> None:
    limit = RateLimit()
    assert [limit.take_turn(100.0, 0.5) for _ in range(3)] == [0.0, 2.0, 4.0]
    assert limit.take_turn(106.0, 0.5) == 0.0
