"""Messages as bytes: a protobuf head and a safetensors body, cut into frames. Nothing on the wire can run code.

A body that we write ourselves holds its tensors in the model's own order, so its data are the flat vectors as they lie
in memory; a body whose header is byte for byte the one we would have written is read without a copy. Every other body
goes through the safetensors library."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, deserialize
from torch import Tensor

from polytempo.core.schema import Schema
from polytempo.core.tensor_file import ITEM_BYTES, header
from polytempo.core.vectors import aligned
from polytempo.serve.protocol.wire_pb2 import Frame, Head

SERVICE = "polytempo.Federation"
SESSION = f"/{SERVICE}/Session"
ENROL = f"/{SERVICE}/Enrol"
FRAME_BYTES = 1 << 18
"""Of data. gRPC holds so much of a message that has not come whole, and nobody counts it: it has to be little."""
LARGEST_HEAD = 1 << 18
NO_LIMIT = 1 << 62
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", FRAME_BYTES + LARGEST_HEAD + 1024),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)

Buffer = bytes | bytearray | memoryview


class WireError(Exception):
    """What came is no message of ours. The text says why."""


class Entry(NamedTuple):
    """One tensor of a body."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "F16": np.dtype(np.float16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@lru_cache(maxsize=64)
def entries_of(schema: Schema, prefix: str = "", dtype: str = "F32") -> tuple[Entry, ...]:
    """The tensors of one vector of the model's shape."""
    return tuple(Entry(prefix + name, dtype, shape) for name, shape in zip(schema.names, schema.shapes, strict=True))


def entry_of(name: str, array: np.ndarray) -> Entry:
    if array.dtype not in _NAMES:
        raise WireError(f"{name} has dtype {array.dtype}, which cannot be sent; expected one of {', '.join(_DTYPES)}")
    return Entry(name, _NAMES[array.dtype], array.shape)


@lru_cache(maxsize=64)
def body_header(entries: tuple[Entry, ...]) -> bytes:
    """The safetensors header of a body that holds these tensors in this order."""
    return header(entries)


def make_body(entries: tuple[Entry, ...], data: Sequence[Tensor | np.ndarray]) -> list[Buffer]:
    """A safetensors body in pieces: the header, and the data, which must lie in the order of the entries."""
    return [body_header(entries), *(memory_of(part) for part in data)]


def memory_of(part: Tensor | np.ndarray) -> memoryview:
    """Its bytes, where they lie if they lie in a row."""
    array = np.ascontiguousarray(part.numpy() if isinstance(part, Tensor) else part)
    return array.data.cast("B") if array.size else memoryview(b"")


def as_written(body: bytearray, entries: tuple[Entry, ...]) -> memoryview | None:
    """The data of a body that holds exactly these tensors in this order, without a copy; None if it is another one."""
    expected = body_header(entries)
    size = len(expected) + sum(entry.nbytes for entry in entries)
    if len(body) != size or not body.startswith(expected):
        return None
    return memoryview(body)[len(expected) :]


def floats(data: memoryview) -> Tensor:
    """A vector of float32 numbers."""
    return aligned(torch.frombuffer(data, dtype=torch.float32)) if len(data) else torch.zeros(0)


def read_body(body: Buffer) -> dict[str, np.ndarray]:
    """Any safetensors body, by name."""
    if not body:
        return {}
    try:
        parts = deserialize(bytes(body))  # type: ignore[no-untyped-call]
        return {
            name: np.frombuffer(bytearray(part["data"]), _DTYPES[part["dtype"]]).reshape(part["shape"])
            for name, part in parts
        }
    except KeyError as error:
        raise WireError(f"a tensor has dtype {error.args[0]}; expected one of {', '.join(_DTYPES)}") from None
    except (SafetensorError, ValueError, OverflowError) as error:  # numpy refuses shapes that safetensors lets pass
        raise WireError(f"the tensors cannot be read as safetensors: {error}") from None


def frames(head: Head, body: Sequence[Buffer] = ()) -> Iterator[Frame]:
    """A message in frames of at most ``FRAME_BYTES`` of data."""
    head.size = sum(len(buffer) for buffer in body)
    pieces: list[memoryview] = []
    room = FRAME_BYTES
    first: Head | None = head
    for buffer in body:
        rest = memoryview(buffer)
        while len(rest):
            piece, rest = rest[:room], rest[room:]
            pieces.append(piece)
            room -= len(piece)
            if room == 0:
                yield Frame(head=first, data=b"".join(pieces))
                first, pieces, room = None, [], FRAME_BYTES
    if pieces or first is not None:
        yield Frame(head=first, data=b"".join(pieces))


class Assembler:
    """Puts frames together again. A message takes no more memory than has come of it."""

    def __init__(self) -> None:
        self._head: Head | None = None
        self._body = bytearray()

    def add(self, frame: Frame, limit: int = NO_LIMIT) -> tuple[Head, bytearray] | None:
        """A whole message, when this frame was its last. None may be larger than ``limit``."""
        if self._head is None:
            self._begin(frame, limit)
        elif frame.HasField("head"):
            missing = self._head.size - len(self._body)
            raise WireError(f"a message began before {missing} bytes of the last one had come")
        assert self._head is not None
        size = self._head.size
        if len(self._body) + len(frame.data) > size:
            raise WireError(f"a message has more than the {size} bytes that it said it had")
        if not frame.data and size:
            raise WireError("a frame has no data")
        self._body += frame.data
        if len(self._body) < size:
            return None
        whole = self._head, self._body
        self._head, self._body = None, bytearray()
        return whole

    def _begin(self, frame: Frame, limit: int) -> None:
        if not frame.HasField("head") or frame.head.WhichOneof("kind") is None:
            raise WireError("a message does not begin with a head of a known kind: is its sender a newer version?")
        if frame.head.ByteSize() > LARGEST_HEAD:
            raise WireError(f"a head has {frame.head.ByteSize()} bytes; expected at most {LARGEST_HEAD}")
        if frame.head.size > limit:
            kind = frame.head.WhichOneof("kind")
            raise WireError(f"a {kind} has {frame.head.size} bytes; expected at most {limit} here")
        self._head = frame.head
