"""The server's side of the scripts: it speaks the protocol on a real port, and does what a script tells it, no more.
What a client sends is checked for form as it arrives."""

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import grpc

from polytempo.serve.conform.program import Program
from polytempo.serve.server.messages import Message
from polytempo_client.errors import WireError
from polytempo_client.protocol.framing import CHANNEL_OPTIONS, FRAME_BYTES, SERVICE, Assembler, Buffer, frames
from polytempo_client.protocol.wire_pb2 import Enrolled, Enrolment, Frame, Head

T = TypeVar("T")

POLL_SECONDS = 0.02
ON_ITS_WAY = 0.5
"""Seconds in which what a program sent before it ended arrives."""
MOST_READ = 64 << 20
"""Bytes of a frame that are read, so that one that is too large can be named."""
OPTIONS = tuple(
    (dict(CHANNEL_OPTIONS) | {"grpc.so_reuseport": 0, "grpc.max_receive_message_length": MOST_READ}).items()
)


class NotMetError(Exception):
    """The client does not do what the point asks for. The text says what it did."""


class Watch:
    """Waits for what a client should do: so many seconds, and no longer than its program runs."""

    def __init__(self, seconds: float, program: Callable[[], Program | None]) -> None:
        self.seconds, self._program = seconds, program

    def wait(self, look: Callable[[], T | None], expected: str) -> T:
        """What ``look`` finds in the end."""
        deadline, ended = time.monotonic() + self.seconds, False
        while (found := look()) is None:
            program, now = self._program(), time.monotonic()
            if program is not None and program.exit_code is not None and not ended:
                deadline, ended = min(deadline, now + ON_ITS_WAY), True
            if now > deadline:
                why = program.end() if program is not None and ended else f"nothing came within {self.seconds:g} s"
                raise NotMetError(f"expected {expected}, but {why}")
            time.sleep(POLL_SECONDS)
        return found

    def wait_for_end(self, program: Program) -> int:
        """The exit code with which the program ends by itself."""
        deadline = time.monotonic() + self.seconds
        while program.exit_code is None:
            if time.monotonic() > deadline:
                raise NotMetError(f"expected the program to end, but it still runs after {self.seconds:g} s")
            time.sleep(POLL_SECONDS)
        return program.exit_code

    def take(self, arrivals: "queue.SimpleQueue[T]", expected: str) -> T:
        def look() -> T | None:
            try:
                return arrivals.get_nowait()
            except queue.Empty:
                return None

        return self.wait(look, expected)


class Received(NamedTuple):
    """A message of the client's."""

    head: Head
    body: bytearray

    @property
    def kind(self) -> str:
        return str(self.head.WhichOneof("kind"))


class Ending(NamedTuple):
    """How a call ends: in order, or with a status."""

    code: grpc.StatusCode | None = None
    details: str = ""


class Talk:
    """One session. The script takes the client's messages and sends the server's."""

    def __init__(self, watch: Watch, token: str, names: tuple[str, ...]) -> None:
        self.token, self.names = token, names
        """The token that the client showed, and the names in its certificate."""
        self.frame_bytes = FRAME_BYTES
        self.watch = watch
        self.arrived: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self.out: queue.SimpleQueue[Frame | Ending] = queue.SimpleQueue()
        self._assembler = Assembler()
        self._numbers: set[int] = set()
        self._greeted = False
        self.is_over = False
        """The client has ended the session."""

    def take(self, *kinds: str) -> Received:
        """The client's next message, of one of these kinds."""
        expected = " or ".join(kinds)
        while True:
            frame = self.watch.take(self.arrived, f"a {expected}")
            if frame is None:
                self.is_over = True
                raise NotMetError(f"expected a {expected}, but it ended the session")
            whole = self._assembled(frame)
            if whole is not None:
                asked = self._checked(whole)
                if asked.kind not in kinds:
                    raise NotMetError(f"expected a {expected}, but it sent a {asked.kind}")
                return asked

    def is_silent(self, seconds: float) -> bool:
        """Does nothing come for so long?"""
        try:
            return self.arrived.get(timeout=seconds) is None
        except queue.Empty:
            return True

    def send(self, message: Message, answers: Received | None = None, frame_bytes: int = FRAME_BYTES) -> None:
        """A message of the server's, as the reply to the client's or unasked."""
        head, body = message
        if answers is not None:
            head.answers = answers.head.request
            self._numbers.discard(head.answers)
        self.send_frames(head, body, frame_bytes)

    def send_frames(self, head: Head, body: Sequence[Buffer], frame_bytes: int) -> None:
        for frame in frames(head, body, frame_bytes):
            self.out.put(frame)

    def end(self, code: grpc.StatusCode | None = None, details: str = "") -> None:
        """End the session after what was sent."""
        self.out.put(Ending(code, details))

    def _assembled(self, frame: Frame) -> tuple[Head, bytearray] | None:
        if len(frame.data) > self.frame_bytes:
            raise NotMetError(
                f"a frame has {len(frame.data)} bytes of data, and at most {self.frame_bytes} are allowed"
            )
        try:
            return self._assembler.add(frame)
        except WireError as error:
            raise NotMetError(f"what it sent is no message: {error}") from None

    def _checked(self, whole: tuple[Head, bytearray]) -> Received:
        asked = Received(*whole)
        if not self._greeted and asked.kind != "hello":
            raise NotMetError(f"a session has to begin with hello, and this one did with {asked.kind}")
        self._greeted = True
        number = asked.head.request
        if not number or number in self._numbers:
            raise NotMetError(f"a {asked.kind} has the request number {number}, which is 0 or that of an open request")
        if asked.body and asked.kind != "push":
            raise NotMetError(f"a {asked.kind} has a body of {len(asked.body)} bytes; only a push has one")
        self._numbers.add(number)
        return asked


class ScriptedServer:
    """One server. ``credentials`` are its TLS."""

    def __init__(self, watch: Watch, credentials: grpc.ServerCredentials) -> None:
        self._watch, self._credentials = watch, credentials
        self.port = 0
        self.arrivals: queue.SimpleQueue[Talk] = queue.SimpleQueue()
        self.attempts: list[float] = []
        """When sessions were asked for."""
        self.refusal: Ending | None = None
        """With what every session is turned away; None: it is not."""
        self.enrolments: queue.SimpleQueue[Enrolment] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._server: Any = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Listen, on the same port as before."""
        server = grpc.server(ThreadPoolExecutor(32), options=OPTIONS)
        handlers = {
            "Session": grpc.stream_stream_rpc_method_handler(self._session, Frame.FromString, Frame.SerializeToString),
            "Enrol": grpc.unary_unary_rpc_method_handler(self._enrol, Enrolment.FromString, Enrolled.SerializeToString),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        self.port = server.add_secure_port(self.address, self._credentials)
        server.start()
        self._server = server

    def stop(self) -> None:
        """As when the process ends: all connections break."""
        self._server.stop(grace=None).wait()

    def next_talk(self) -> Talk:
        """The client's next session."""
        return self._watch.take(self.arrivals, "a session")

    def take_enrolment(self) -> Enrolment:
        return self._watch.take(self.enrolments, "an enrolment")

    def _session(self, arriving: Iterator[Frame], context: Any) -> Iterator[Frame]:
        with self._lock:
            self.attempts.append(time.monotonic())
        if self.refusal is not None:
            context.abort(self.refusal.code, self.refusal.details)
        kind, _, token = str(dict(context.invocation_metadata()).get("authorization", "")).partition(" ")
        names = tuple(name.decode() for name in context.auth_context().get("x509_common_name", ()))
        talk = Talk(self._watch, token if kind == "Bearer" else "", names)
        context.add_callback(lambda: talk.out.put(Ending()))
        threading.Thread(target=_read, args=(arriving, talk), daemon=True).start()
        self.arrivals.put(talk)
        while not isinstance(sent := talk.out.get(), Ending):
            yield sent
        if sent.code is not None:
            context.abort(sent.code, sent.details)

    def _enrol(self, enrolment: Enrolment, _: Any) -> Enrolled:
        self.enrolments.put(enrolment)
        return Enrolled(client=0)


def _read(arriving: Iterator[Frame], talk: Talk) -> None:
    try:
        for frame in arriving:
            talk.arrived.put(frame)
    except Exception:  # gRPC raises a plain one when the call is over
        pass
    talk.arrived.put(None)
