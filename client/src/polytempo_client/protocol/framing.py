"""Messages as frames: a protobuf head and a body, cut into pieces of bounded size. Nothing on the wire can run code."""

from collections.abc import Iterator, Sequence

from polytempo_client.errors import WireError
from polytempo_client.protocol.wire_pb2 import Frame, Head

SERVICE = "polytempo.Federation"
SESSION = f"/{SERVICE}/Session"
ENROL = f"/{SERVICE}/Enrol"
PROTOCOL = 1
"""The newest protocol that this version speaks."""
FRAME_BYTES = 1 << 18
"""Of data. gRPC holds up to one frame that has not arrived whole, and no limit counts it, so a frame is small."""
NOT_HERE = "not here"
"""How the details of a call's end begin, with the code UNAVAILABLE, where another server has the service: the client
goes on to its next address."""
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
CLIENT_OPTIONS = (*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
"""A connection of its own for each channel: gRPC would share one, on which the server takes only a few calls."""

Buffer = bytes | bytearray | memoryview


def frames(head: Head, body: Sequence[Buffer] = (), most: int = FRAME_BYTES) -> Iterator[Frame]:
    """A message in frames of at most so many bytes of data."""
    head.size = sum(len(buffer) for buffer in body)
    pieces: list[memoryview] = []
    room = most
    first: Head | None = head
    for buffer in body:
        rest = memoryview(buffer)
        while len(rest):
            piece, rest = rest[:room], rest[room:]
            pieces.append(piece)
            room -= len(piece)
            if room == 0:
                yield Frame(head=first, data=b"".join(pieces))
                first, pieces, room = None, [], most
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
            raise WireError(f"a message has more than the {size} bytes that its head declares")
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
