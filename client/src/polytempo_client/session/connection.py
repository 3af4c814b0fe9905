"""A client's session that outlives connections: a thread reconnects with growing pauses and sends again what was not
answered. The server knows repeats and does nothing twice."""

import itertools
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoResultError
from dataclasses import dataclass, field
from typing import Any

import grpc

from polytempo_client.errors import DisplacedError, RefusedError, UserError, VersionError, WireError
from polytempo_client.logs import log
from polytempo_client.protocol.framing import FRAME_BYTES, PROTOCOL, Assembler, Buffer, frames
from polytempo_client.protocol.wire_pb2 import Frame, Head, Hello
from polytempo_client.session.addresses import Servers
from polytempo_client.session.channels import channel_to, open_session, wait_for_helpers
from polytempo_client.session.failures import FailedAttempt, failure_of, hint_for
from polytempo_client.session.probing import Prober, welcomes
from polytempo_client.session.search import Search

TAKEN_OVER, TAKEN_OVER_WITHIN = 5, 600.0
"""A client whose sessions were so often taken over by another one within so many seconds gives up."""

OWN_PROBE = 10.0
"""Seconds after a probe for which a session that ends was ended by the client itself: two addresses may lead to one
server."""

Reply = tuple[Head, bytearray]


@dataclass
class _Request:
    head: Head
    body: Sequence[Buffer]
    since: float = field(default_factory=time.monotonic)
    """When it was given to the open session."""
    reply: "Future[Reply]" = field(default_factory=Future)


class Connection:
    """``credentials`` are read anew for every session, None for plaintext; ``hello`` says what the client has in hand;
    ``take`` is given every message of the server, on the connection's thread and before whoever asked for it gets it;
    ``failed`` is called when there is no hope any more."""

    def __init__(
        self,
        servers: Servers,
        token: str,
        credentials: Callable[[], grpc.ChannelCredentials] | None,
        hello: Callable[[], Hello],
        take: Callable[[Head, bytearray], None],
        failed: Callable[[], None],
        certified: bool = False,
    ) -> None:
        self.servers = servers
        self._token, self._credentials, self._certified = token, credentials, certified
        self._hello, self._take, self._failed = hello, take, failed
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Request] = {}
        self._outbox: queue.SimpleQueue[_Request | None] | None = None  # while the session is open
        self._call: Any = None
        self._closed = threading.Event()
        self._frame_bytes = FRAME_BYTES
        self._search = Search(servers)
        self._probed = -OWN_PROBE
        """When another address last welcomed the client beside the open session."""
        self._taken_over: deque[float] = deque(maxlen=TAKEN_OVER)
        self.failure: UserError | None = None
        self._thread = threading.Thread(target=self._run, name="polytempo-connection", daemon=True)
        prober = Prober(self._waiting_since, lambda: self._search.others, self._probe, self._switch, time.monotonic)
        self._prober = threading.Thread(target=prober.run, args=(self._closed,), name="polytempo-prober", daemon=True)

    def open(self) -> None:
        self._thread.start()
        if self._search.several:
            self._prober.start()

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
        except NoResultError:  # Python's own TimeoutError, but for Python 3.10
            raise TimeoutError(f"{self.servers} has not answered within {timeout} s") from None
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
        for thread in (self._thread, self._prober):
            if thread.ident is not None:
                thread.join()

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

    # Other servers of the service.

    def _waiting_since(self) -> float | None:
        with self._lock:
            return None if self._outbox is None else min((one.since for one in self._pending.values()), default=None)

    def _probe(self, address: str) -> bool:
        try:
            credentials = None if self._credentials is None else self._credentials()
        except UserError:  # its own files, which the session will tell about
            return False
        found = welcomes(address, self._token, credentials, self._hello())
        if found:
            self._probed = time.monotonic()
        return found

    def _switch(self, address: str, since: float) -> None:
        seconds = round(time.monotonic() - since, 1)
        log(
            "another server leads", level=logging.WARNING, address=address, silent=self._search.address, seconds=seconds
        )
        self._search.go_to(address)
        self._call.cancel()

    # The thread.

    def _run(self) -> None:
        search = self._search
        while not self._closed.is_set():
            search.begin()
            try:
                for _ in self._session():
                    search.note_answer()
                failure = FailedAttempt("the server ended the session")
            except grpc.RpcError as error:
                failure = failure_of(error, search.address)
            except UserError as error:  # its own files, which were good before
                failure = FailedAttempt(str(error))
            except Exception as error:  # the thread must not end unheard
                self._fail(VersionError(f"{search.address} sends what this version does not understand: {error!r}."))
                return
            finally:
                with self._lock:
                    self._outbox = None
            hopeless = search.hopeless(failure) or self._is_taken_over()
            if hopeless is not None:
                self._fail(hopeless)
                return
            if not self._closed.is_set() and not failure.elsewhere:
                hint = hint_for(failure.reason, self._credentials is not None, self._certified)
                reason = failure.reason + ("" if search.greeted else hint)
                log("disconnected", level=logging.WARNING, address=search.address, reason=reason)
            self._closed.wait(search.pause(failure))

    def _is_taken_over(self) -> UserError | None:
        """Do two programs with the same token take the session from each other again and again? Then give up."""
        times = self._taken_over
        if len(times) < TAKEN_OVER or times[-1] - times[0] > TAKEN_OVER_WITHIN:
            return None
        return DisplacedError(
            f"{self.servers} was joined {TAKEN_OVER} times by somebody else with this client's token, which ended "
            "this session each time. Give every client a token of its own; if nobody else should have this one, "
            "let it be revoked."
        )

    def _session(self) -> Iterator[bool]:
        """One connection, from hello to its end. Yields when a request has got its reply."""
        outbox: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._frame_bytes = FRAME_BYTES
        hello = Head(request=next(self._numbers), hello=self._hello())
        outbox.put(_Request(hello, ()))
        credentials = None if self._credentials is None else self._credentials()
        helpers: set[threading.Thread] = set()
        try:
            with channel_to(self._search.address, credentials, one_of_several=self._search.several) as channel:
                self._call, helpers = open_session(channel, self._frames(outbox), self._token)
                if self._closed.is_set():
                    self._call.cancel()
                yield from self._answers(outbox, hello.request)
        finally:
            outbox.put(None)
            wait_for_helpers(helpers)

    def _answers(self, outbox: "queue.SimpleQueue[_Request | None]", hello: int) -> Iterator[bool]:
        """Take what the server sends, until it ends the session. Yields when a request has got its reply."""
        assembler = Assembler()
        for frame in self._call:
            whole = assembler.add(frame)
            if whole is None:
                continue
            head, body = whole
            if head.HasField("refusal") and self._is_over(head):
                return
            if head.HasField("welcome"):
                self._check_protocol(head)
            self._take(head, body)
            if head.answers == hello:
                self._open(outbox)
            elif head.answers:
                self._resolve(head, body)
                yield True

    def _is_over(self, head: Head) -> bool:
        """Does this refusal end the session? One that says so itself may also be about a request that is not named."""
        refusal = head.refusal
        if refusal.again:
            log("told to try again", level=logging.WARNING, reason=refusal.reason)
        elif refusal.replaced:
            log("taken over", level=logging.WARNING, reason=refusal.reason)
            if time.monotonic() > self._probed + OWN_PROBE:
                self._taken_over.append(time.monotonic())
        elif not head.answers:
            self._give_up(RefusedError(refusal.reason))  # it cannot tell which request it was
        return bool(refusal.again or refusal.replaced)

    def _check_protocol(self, head: Head) -> None:
        if head.welcome.protocol > PROTOCOL:
            raise WireError(f"it speaks protocol {head.welcome.protocol}, and this version {PROTOCOL}")
        self._frame_bytes = min(head.welcome.frame_bytes or FRAME_BYTES, FRAME_BYTES)

    def _open(self, outbox: "queue.SimpleQueue[_Request | None]") -> None:
        self._search.note_session()
        with self._lock:
            self._outbox = outbox
            for request in self._pending.values():
                request.since = time.monotonic()
                outbox.put(request)

    def _resolve(self, head: Head, body: bytearray) -> None:
        with self._lock:
            request = self._pending.pop(head.answers, None)
        if request is not None:
            request.reply.set_result((head, body))

    def _frames(self, outbox: "queue.SimpleQueue[_Request | None]") -> Iterator[Frame]:
        while (request := outbox.get()) is not None:
            yield from frames(request.head, request.body, self._frame_bytes)
