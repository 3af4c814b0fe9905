"""Messages on their way from the host's thread to the loop that sends them."""

import asyncio
from collections import deque
from collections.abc import Callable

from polytempo.serve.server.messages import Message

WAITING_MESSAGES = 256
"""That a client may leave unread; one that reads no more is disconnected, and sent what it missed when it returns."""
WAITING_REQUESTS = 2
"""Requests of one session that may wait for their reply. The next is read when one of them has it."""


class Outbox:
    """Sessions with messages to send. The host's thread adds them and flushes; the loop delivers. ``call_soon`` lets
    the loop do something, and may be called from any thread; without a loop it is done at once."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object] = lambda deliver: deliver()) -> None:
        self._call_soon = call_soon
        self._sessions: deque[GrpcSession] = deque()

    def add(self, session: "GrpcSession") -> None:
        self._sessions.append(session)

    def flush(self) -> None:
        """Have everything delivered that was added."""
        if self._sessions:
            self._call_soon(self.deliver)

    def deliver(self) -> None:
        """On the loop: wake the sessions that have something to send."""
        while self._sessions:
            self._sessions.popleft().wake()


class GrpcSession:
    """One client's connection. The host hands messages over from its thread; they go out in order."""

    def __init__(self, client: int, token_hash: str, outbox: Outbox, certificate_expires: float | None = None) -> None:
        self.client = client
        self.certificate_expires = certificate_expires
        self.token_hash = token_hash
        self.download = ""
        self.messages: deque[tuple[Message, int] | None] = deque()
        """To be sent, each with the request that it replies to. None: the session ends here."""
        self.news = asyncio.Event()
        self.ended = asyncio.Event()
        self.expelled: str | None = None
        """Why it may not go on."""
        self.room = asyncio.Semaphore(WAITING_REQUESTS)
        self.waiting: dict[int, float] = {}
        """Requests without a reply, and when they came."""
        self.greeted = False
        self._ending = False
        self._outbox = outbox

    def send(self, message: Message, request: int = 0) -> None:
        if len(self.messages) >= WAITING_MESSAGES:
            self.messages.clear()
            self.end()
            return
        self.messages.append((message, request))
        self._outbox.add(self)

    def end(self) -> None:
        self._ending = True
        self.messages.append(None)
        self._outbox.add(self)

    def wake(self) -> None:
        """On the loop: there is something to send."""
        self.news.set()
        if self._ending:
            self.ended.set()
