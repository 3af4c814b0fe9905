"""The wire: what is sent arrives, and whatever else arrives is refused without a trace."""

import json
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load, save

from polytempo.core.model.vectors import floats
from polytempo_client.errors import WireError
from polytempo_client.model.schema import Schema
from polytempo_client.protocol import framing
from polytempo_client.protocol.bodies import as_written, entries_of, entry_of, make_body, read_body
from polytempo_client.protocol.framing import FRAME_BYTES, SESSION, Assembler, frames
from polytempo_client.protocol.wire_pb2 import Accepted, Frame, Head, Hello, Leave, Pull, Push, Ready, Task
from support.serving import Hosted, Running, hosted, nudge, running, until

MANY = settings(max_examples=150, suppress_health_check=list(HealthCheck))


def assembled(sent: Iterable[Frame], limit: int = 1 << 30) -> list[tuple[Head, bytearray]]:
    assembler = Assembler()
    found = [assembler.add(Frame.FromString(frame.SerializeToString()), limit) for frame in sent]
    return [whole for whole in found if whole is not None]


# Frames.


@pytest.mark.parametrize("size", [0, 1, FRAME_BYTES - 1, FRAME_BYTES, FRAME_BYTES + 1, 2 * FRAME_BYTES, 2_500_000])
def test_a_message_of_any_size_arrives_in_frames_of_bounded_size(size: int) -> None:
    body = np.random.default_rng(0).bytes(size)
    sent = list(frames(Head(request=3, pull=Pull()), [body]))
    assert all(len(frame.data) <= FRAME_BYTES for frame in sent)
    assert len(sent) == max(1, -(-size // FRAME_BYTES))
    [(head, found)] = assembled(sent)
    assert (head.request, bytes(found)) == (3, body)


@MANY
@given(st.lists(st.lists(st.binary(max_size=40), max_size=4), min_size=1, max_size=4), st.integers(1, 20))
def test_messages_arrive_one_after_the_other_however_they_are_cut(messages: list[list[bytes]], room: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(framing, "FRAME_BYTES", room)
        sent = [frame for body in messages for frame in frames(Head(pull=Pull()), body)]
    assert [bytes(body) for _, body in assembled(sent)] == [b"".join(body) for body in messages]


def head(size: int = 0) -> Head:
    return Head(size=size, pull=Pull())


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ([Frame(data=b"abc")], "does not begin with a head"),
        ([Frame(head=Head(size=3), data=b"abc")], "of a known kind"),
        ([Frame(head=head(101), data=b"a")], "101 bytes; expected at most 100"),
        ([Frame(head=head(2**63), data=b"a")], "expected at most 100"),
        ([Frame(head=head(3), data=b"abcd")], "more than the 3 bytes"),
        ([Frame(head=head(0), data=b"a")], "more than the 0 bytes"),
        ([Frame(head=head(3), data=b"ab"), Frame(data=b"cd")], "more than the 3 bytes"),
        ([Frame(head=head(3), data=b"ab"), Frame(head=head(1), data=b"c")], "began before 1 bytes"),
        ([Frame(head=head(3), data=b"ab"), Frame()], "no data"),
        ([Frame(head=Head(push=Push(answers="x" * 2_000_000)))], "a head has 2000"),
    ],
)
def test_frames_that_make_no_message_are_named(sent: list[Frame], reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        assembled(sent, limit=100)


# Bodies.

arrays = st.dictionaries(
    st.text(st.characters(codec="ascii", min_codepoint=33), min_size=1, max_size=8),
    st.sampled_from(["f4", "f8", "f2", "i8", "i4", "u1", "?"]).flatmap(
        lambda kind: st.lists(st.integers(0, 3), max_size=3).map(lambda shape: np.ones(shape, kind))
    ),
    max_size=4,
)


@MANY
@given(arrays)
def test_a_body_that_we_write_is_read_by_the_safetensors_library_and_the_other_way_round(
    tensors: dict[str, np.ndarray],
) -> None:
    entries = tuple(entry_of(name, array) for name, array in tensors.items())
    ours = b"".join(make_body(entries, list(tensors.values())))
    for found in (load(ours), read_body(ours), read_body(save(tensors))):
        assert set(found) == set(tensors)
        for name, array in tensors.items():
            assert found[name].dtype == array.dtype
            assert np.array_equal(found[name], array)


def test_a_body_of_the_models_own_order_is_read_without_a_copy() -> None:
    schema = Schema(("b", "a"), ((2,), (2, 2)), 6)
    body = bytearray(b"".join(make_body(entries_of(schema), [np.arange(6, dtype=np.float32)])))
    data = as_written(body, entries_of(schema))
    assert data is not None
    assert torch.equal(floats(data), torch.arange(6.0))
    body[-4:] = np.float32(9.0).tobytes()
    assert floats(data)[-1] == 9.0
    assert (
        as_written(bytearray(save({"b": np.zeros(2, "f4"), "a": np.zeros((2, 2), "f4")})), entries_of(schema)) is None
    )


def with_header(table: Any, data: bytes = b"") -> bytes:
    text = table if isinstance(table, bytes) else json.dumps(table).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


HOSTILE_BODIES = {
    "nothing but a length": (5).to_bytes(8, "little"),
    "a huge header": (2**62).to_bytes(8, "little") + b"{}",
    "no json": with_header(b"\xff\xfe{}"),
    "json of another shape": with_header([1, 2]),
    "deep json": with_header(b"[" * 100_000),
    "deep metadata": with_header(b'{"a":' * 10_000),
    "beyond the data": with_header({"bias": tensor(offsets=(0, 800))}, bytes(8)),
    "backwards": with_header({"bias": tensor(offsets=(8, 0))}, bytes(8)),
    "negative": with_header({"bias": tensor(offsets=(-8, 0))}, bytes(8)),
    "overlapping": with_header({"bias": tensor(), "weight": tensor()}, bytes(8)),
    "another size than its shape": with_header({"bias": tensor(shape=(3,))}, bytes(8)),
    "an overflowing shape": with_header({"bias": tensor(shape=(2**32, 2**32, 2**32))}, bytes(8)),
    "an empty shape too large for memory": with_header({"bias": tensor(shape=(0, 2**62, 2**62), offsets=(0, 0))}),
    "an empty shape of more numbers than there are": with_header({"bias": tensor(shape=(0, 2**63), offsets=(0, 0))}),
    "too many dimensions": with_header({"bias": tensor(shape=[1] * 200, offsets=(0, 4))}, bytes(4)),
    "an unknown dtype": with_header({"bias": tensor("F4")}, bytes(8)),
    "a dtype that numpy lacks": with_header({"bias": tensor("BF16", (4,))}, bytes(8)),
    "a dtype that is none": with_header({"bias": tensor(7)}, bytes(8)),
    "a float shape": with_header({"bias": tensor(shape=(2.5,))}, bytes(8)),
    "bytes behind the data": with_header({"bias": tensor()}, bytes(16)),
    "the same name twice": with_header(b'{"a":%s,"a":%s}' % ((json.dumps(tensor()).encode(),) * 2), bytes(8)),
}


@pytest.mark.parametrize("case", HOSTILE_BODIES)
def test_a_hostile_body_is_refused_and_changes_nothing(case: str, tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        begin(served)
        before = served.digest()
        answer = served.ask(0, served.pushed(0)[0], [HOSTILE_BODIES[case]])
        assert answer.refusal.reason
        assert served.digest() == before


# Fuzzing. What comes may be anything; the only errors are ours.

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["tuple", "deque", "maxlen", "dict", "tensor", "array", "again", "object", "state"]),
            inner,
            max_size=3,
        )
        | inner.map(lambda value: {"dict": [["a", value]]})
    ),
    max_leaves=6,
)
FIELDS = ["task", "base", "samples", "steps", "answers"]
numbers = st.integers(0, 2**64 - 1) | st.integers(0, 5)
pushes = st.builds(
    Push,
    task=numbers,
    base=numbers,
    samples=numbers,
    steps=numbers,
    chosen=st.none() | st.integers(0, 2**32 - 1),
    answers=st.text(max_size=20) | anything.map(json.dumps),
    ready=st.booleans(),
)
heads = st.one_of(
    st.builds(Head, size=numbers, request=numbers, answers=numbers, push=pushes),
    st.builds(Head, size=numbers, request=numbers, hello=st.builds(Hello, task=numbers, heeded=numbers)),
    st.builds(Head, size=numbers, task=st.builds(Task, number=numbers)),
    st.sampled_from([Head(), Head(ready=Ready()), Head(pull=Pull()), Head(leave=Leave()), Head(accepted=Accepted())]),
)
some_frames = st.lists(st.builds(Frame, head=st.none() | heads, data=st.binary(max_size=50)), max_size=5)


mutations = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3), st.binary(max_size=4)), min_size=1, max_size=4)


def mutated(content: bytes, changes: list[tuple[float, int, bytes]]) -> bytes:
    """Bytes changed, cut out or put in, each somewhere between beginning and end."""
    changed = bytearray(content)
    for where, cut, put in changes:
        place = round(where * len(changed))
        changed[place : place + cut] = put
    return bytes(changed)


@MANY
@given(arrays, mutations)
def test_a_body_that_is_read_is_read_as_the_safetensors_library_does(
    tensors: dict[str, np.ndarray], changes: list[tuple[float, int, bytes]]
) -> None:
    body = mutated(save(tensors), changes)
    with suppress(WireError):
        found = read_body(body)
        expected = load(body) if body else {}
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name], equal_nan=True) for name in expected)


def begin(served: Hosted) -> None:
    for client in (0, 1):
        served.hello(client)
        served.ready(client)


@MANY
@given(st.lists(st.binary(max_size=200), max_size=4) | some_frames.map(lambda f: [x.SerializeToString() for x in f]))
def test_no_bytes_break_the_assembler(sent: list[bytes]) -> None:
    assembler = Assembler()
    try:
        for content in sent:
            whole = assembler.add(Frame.FromString(content), 1 << 20)
            assert whole is None or whole[0].WhichOneof("kind")
    except (DecodeError, WireError):
        pass


def test_no_mutated_message_breaks_the_host(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        begin(served)

        @MANY
        @given(st.booleans(), mutations)
        def throw(answers: bool, changes: list[tuple[float, int, bytes]]) -> None:
            head, body = served.pushed(0, answers={"a": torch.ones(2), "b": [1.0]} if answers else {})
            [frame] = frames(head, body)
            with suppress(DecodeError, WireError):
                whole = Assembler().add(Frame.FromString(mutated(frame.SerializeToString(), changes)), 10_000)
                if whole is not None and whole[0].HasField("push"):
                    check(served, *whole)

        throw()
        assert served.push(1).WhichOneof("kind") == "task"


def test_no_made_up_push_breaks_the_host(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        begin(served)

        @settings(MANY, max_examples=300)
        @given(
            pushes, st.sets(st.sampled_from(["task", "base", "samples", "steps", "answers"])), st.just([]) | mutations
        )
        def throw(push: Push, honest: set[str], changes: list[tuple[float, int, bytes]]) -> None:
            head, body = served.pushed(0)
            for name in honest:
                setattr(push, name, getattr(head.push, name))
            check(served, Head(push=push), mutated(b"".join(body), changes))

        throw()
        assert served.push(1).WhichOneof("kind") == "task"


def check(served: Hosted, head: Head, body: bytes) -> None:
    """The message is refused and nothing changes, or it is taken."""
    before = served.digest()
    answer = served.ask(0, head, [body])
    if answer.HasField("refusal"):
        assert answer.refusal.reason
        assert not answer.refusal.again
        assert served.digest() == before
    served.ready(0)


def throw_at(server: Running, client: int, sent: Iterable[bytes]) -> list[Frame]:
    """Raw bytes to the server in a session of their own, and what it says until it ends the session."""
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        session = channel.stream_stream(SESSION, lambda content: content, Frame.FromString)
        call = session(iter(sent), metadata=(("authorization", f"Bearer {server.token(client)}"),), timeout=30)
        said = []
        with suppress(grpc.RpcError):
            for frame in call:
                said.append(frame)
        assert call.code() != grpc.StatusCode.DEADLINE_EXCEEDED
        return said


HELLO = Frame(head=Head(request=1, hello=Hello()))


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (Head(hello=Hello()), "a client sent a hello without a number of its own"),
        (Head(request=1, ready=Ready()), "a session has to begin with hello, and this one did with ready"),
        (Head(request=1, push=Push()), "a session has to begin with hello, and this one did with push"),
    ],
)
def test_what_is_no_beginning_ends_a_session_at_once_and_holds_nothing(
    tmp_path: Path, first: Head, reason: str
) -> None:
    with running(tmp_path) as server:
        said = throw_at(server, 1, 3 * [Frame(head=first).SerializeToString()])
        assert said[0].head.refusal.reason == reason
        until(lambda: not server.server._open)
        assert server.server._memory.taken == 0


def test_nothing_thrown_at_a_server_stops_it(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client(0) as good:
        task = good.task(30)

        @settings(MANY, max_examples=40)
        @given(st.lists(st.binary(max_size=100), min_size=1, max_size=3) | some_frames.map(as_bytes), st.booleans())
        def throw(sent: list[bytes], greets: bool) -> None:
            throw_at(server, 1, [HELLO.SerializeToString(), *sent] if greets else sent)

        throw()
        good.push(task, nudge(task), samples=5, timeout=30)
        assert server.host.service.members[0].updates == 1
        assert server.host.service.updates == 1
        assert server.host.error is None


def as_bytes(sent: list[Frame]) -> list[bytes]:
    return [frame.SerializeToString() for frame in sent]


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ([Frame(head=Head(request=2, accepted=Accepted()))], "a client sent a message of kind accepted"),
        ([Frame(head=Head(request=2, size=1 << 40, push=Push()), data=b"a")], "expected at most"),
        ([Frame(data=b"no head")], "does not begin with a head"),
    ],
)
def test_a_message_that_is_none_ends_the_session_with_a_reason(sent: list[Frame], reason: str, tmp_path: Path) -> None:
    with running(tmp_path) as server:
        waiting = threading.Event()

        def requests() -> Iterable[bytes]:
            yield from as_bytes([HELLO, *sent])
            waiting.wait(30)  # the server ends the session, not we

        said = throw_at(server, 0, requests())
        waiting.set()
        assert reason in said[-1].head.refusal.reason
        assert server.shared.meters.refusals["wire"] == 1
        assert server.host.service.number == 0
