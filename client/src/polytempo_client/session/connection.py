"""A client's session that outlives connections: a thread reconnects with growing pauses and sends again what was not
answered. The server knows repeats and does nothing twice."""

import itertools
import logging
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import grpc

from polytempo_client.errors import RefusedError, UserError
from polytempo_client.logs import log
from polytempo_client.protocol.framing import CLIENT_OPTIONS, SESSION, Assembler, Buffer, frames
from polytempo_client.protocol.wire_pb2 import Frame, Head, Hello

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds before a client tries again."""
LONGEST_AT_FIRST, AT_FIRST = 1.0, 60.0
"""A server that restarts is back soon: for a minute after a session, pauses are no longer than a second."""
TAKEN_OVER, TAKEN_OVER_WITHIN = 5, 600.0
"""A client whose sessions were so often taken over by another one within so many seconds gives up."""

Reply = tuple[Head, bytearray]


@dataclass
class _Request:
    head: Head
    body: Sequence[Buffer]
    reply: "Future[Reply]" = field(default_factory=Future)


class Connection:
    """``credentials`` are read anew for every session, None for plaintext; ``hello`` says what the client has in hand;
    ``take`` is given every message of the server, on the connection's thread and before whoever asked for it gets it;
    ``failed`` is called when there is no hope any more."""

    def __init__(
        self,
        address: str,
        token: str,
        credentials: Callable[[], grpc.ChannelCredentials] | None,
        hello: Callable[[], Hello],
        take: Callable[[Head, bytearray], None],
        failed: Callable[[], None],
        certified: bool = False,
    ) -> None:
        self.address = address
        self._token, self._credentials, self._certified = token, credentials, certified
        self._hello, self._take, self._failed = hello, take, failed
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Request] = {}
        self._outbox: queue.SimpleQueue[_Request | None] | None = None  # while the session is open
        self._call: Any = None
        self._closed = threading.Event()
        self._welcome = False
        """Was it ever, ..."""
        self._greeted = False
        """... and in the last session?"""
        self._taken_over: deque[float] = deque(maxlen=TAKEN_OVER)
        self.failure: UserError | None = None
        self._thread = threading.Thread(target=self._run, name="polytempo-connection", daemon=True)

    def open(self) -> None:
        self._thread.start()

    def ask(self, head: Head, body: Sequence[Buffer] = (), timeout: float | None = None) -> Reply:
        """Send a request and wait for its reply, however often the connection breaks in between."""
        request = _Request(head, body)
        with self._lock:
            self._check()
            head.request = next(self._numbers)
            self._pending[head.request] = request
            if self._outbox is not None:
                self._outbox.put(request)
        try:
            reply, content = request.reply.result(timeout)
        except TimeoutError:
            raise TimeoutError(f"{self.address} has not answered within {timeout} s") from None
        finally:
            with self._lock:
                self._pending.pop(head.request, None)
        if reply.HasField("refusal"):
            raise RefusedError(reply.refusal.reason, reply.refusal.void, reply.refusal.failed)
        return reply, content

    def close(self) -> None:
        self._closed.set()
        self._fail(UserError("The session is closed."))
        if self._call is not None:
            self._call.cancel()
        if self._thread.ident is not None:
            self._thread.join()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _fail(self, failure: UserError) -> None:
        """There is no hope: everybody who waits is told."""
        with self._lock:
            self.failure = self.failure or failure
        self._give_up(failure)
        self._failed()

    def _give_up(self, reason: UserError) -> None:
        with self._lock:
            waiting = list(self._pending.values())
            self._pending.clear()
        for request in waiting:
            request.reply.set_exception(reason)

    # The thread.

    def _run(self) -> None:
        pause, spoke = FIRST_PAUSE, -AT_FIRST
        while not self._closed.is_set():
            reason = "the server ended the session"
            try:
                for _ in self._session():
                    pause, spoke = FIRST_PAUSE, time.monotonic()
            except grpc.RpcError as error:
                reason = in_words(str(error.details()))
                if hopeless(error, self._welcome):
                    self._fail(UserError(f"{self.address} cannot be joined: {reason}"))
                    return
            except UserError as error:  # its own files, which were good before
                reason = str(error)
            except Exception as error:  # the thread must not end unheard
                self._fail(UserError(f"{self.address} sends what this version does not understand: {error!r}."))
                return
            finally:
                with self._lock:
                    self._outbox = None
            if self._is_taken_over():
                return
            if not self._closed.is_set():
                hint = "" if self._greeted else hint_for(reason, self._credentials is not None, self._certified)
                log("disconnected", level=logging.WARNING, address=self.address, reason=reason + hint)
            self._closed.wait(pause * random.uniform(0.5, 1.0))  # so that not all clients come at the same moment
            pause = min(2 * pause, LONGEST_PAUSE)
            if time.monotonic() < spoke + AT_FIRST:
                pause = min(pause, LONGEST_AT_FIRST)

    def _is_taken_over(self) -> bool:
        """Do two programs with the same token take the session from each other again and again? Then give up."""
        times = self._taken_over
        if len(times) < TAKEN_OVER or times[-1] - times[0] > TAKEN_OVER_WITHIN:
            return False
        self._fail(
            UserError(
                f"{self.address} was joined {TAKEN_OVER} times by somebody else with this client's token, which ended "
                "this session each time. Give every client a token of its own; if nobody else should have this one, "
                "let it be revoked."
            )
        )
        return True

    def _session(self) -> Iterator[bool]:
        """One connection, from hello to its end. Yields when a request has got its reply."""
        outbox: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._greeted = False
        hello = Head(request=next(self._numbers), hello=self._hello())
        outbox.put(_Request(hello, ()))
        with self._channel() as channel:
            open_session = channel.stream_stream(SESSION, Frame.SerializeToString, Frame.FromString)
            self._call = open_session(_frames(outbox), metadata=(("authorization", f"Bearer {self._token}"),))
            if self._closed.is_set():
                self._call.cancel()
            assembler = Assembler()
            try:
                for frame in self._call:
                    whole = assembler.add(frame)
                    if whole is None:
                        continue
                    head, body = whole
                    if head.HasField("refusal") and head.refusal.again:
                        log("told to try again", level=logging.WARNING, reason=head.refusal.reason)
                        return
                    if head.HasField("refusal") and head.refusal.replaced:
                        log("taken over", level=logging.WARNING, reason=head.refusal.reason)
                        self._taken_over.append(time.monotonic())
                        return
                    if head.HasField("refusal") and not head.answers:
                        self._give_up(RefusedError(head.refusal.reason))  # it cannot tell which request it was
                    self._take(head, body)
                    if head.answers == hello.request:
                        self._open(outbox)
                    elif head.answers:
                        self._resolve(head, body)
                        yield True
            finally:
                outbox.put(None)

    def _open(self, outbox: "queue.SimpleQueue[_Request | None]") -> None:
        with self._lock:
            self._welcome = self._greeted = True
            self._outbox = outbox
            for request in self._pending.values():
                outbox.put(request)

    def _resolve(self, head: Head, body: bytearray) -> None:
        with self._lock:
            request = self._pending.pop(head.answers, None)
        if request is not None:
            request.reply.set_result((head, body))

    def _channel(self) -> grpc.Channel:
        return channel_to(self.address, None if self._credentials is None else self._credentials())


def channel_to(address: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """A connection of one's own; in plaintext without credentials."""
    if credentials is None:
        return grpc.insecure_channel(address, CLIENT_OPTIONS)
    return grpc.secure_channel(address, credentials, CLIENT_OPTIONS)


WORDS = {
    "CERTIFICATE_VERIFY_FAILED": "the CA in this file did not sign the server's certificate, or it has expired. Take "
    "the ca.pem of whoever runs the server.",
    "Hostname Verification": "the server's certificate is for another host name. Make one with `polytempo certs DIR "
    "--host NAME`, with the name by which clients reach it.",
    "WRONG_VERSION_NUMBER": "the server speaks plaintext. Use --insecure on loopback.",
}
"""What gRPC says of a wrong certificate, host name or protocol, which have no code of their own, and what it means."""


def hopeless(error: Any, welcome: bool) -> bool:
    """Would trying again lead to the same error? A certificate that is wrong where one was right before is somebody's
    mistake, and will be mended."""
    codes = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
    return error.code() in codes or (not welcome and any(sign in str(error.details()) for sign in WORDS))


def in_words(reason: str) -> str:
    return next((words for sign, words in WORDS.items() if sign in reason), f"{reason.removesuffix('.')}.")


def hint_for(reason: str, secure: bool, certified: bool) -> str:
    """A server that expects TLS, or another certificate, closes the connection without a word."""
    if "Socket closed" not in reason:
        return ""
    if not secure:
        return " (does the server speak TLS? Leave --insecure out, and give --ca)"
    if not certified:
        return " (does the server ask for a certificate? --cert, --key)"
    return " (does the server not accept this client's certificate? Look at its CA, its dates, and this clock)"


def _frames(outbox: "queue.SimpleQueue[_Request | None]") -> Iterator[Frame]:
    while (request := outbox.get()) is not None:
        yield from frames(request.head, request.body)
