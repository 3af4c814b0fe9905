"""A server that was stopped, or lost its network, says nothing at all. Where a service has several, a client whose
request stays unanswered asks the others meanwhile. One that welcomes it has the service. The session goes on untouched
until then, so a request that takes its time on a slow network is not disturbed."""

import queue
import threading
from collections.abc import Callable, Iterator

import grpc

from polytempo_client.errors import WireError
from polytempo_client.protocol.framing import Assembler, frames
from polytempo_client.protocol.wire_pb2 import Frame, Head, Hello
from polytempo_client.session.channels import channel_to, open_session, wait_for_helpers

FIRST_PROBE = 1.0
"""Seconds that a request is unanswered before the others are asked."""
SHORTEST, LONGEST, SHARE = 0.5, 8.0, 0.25
"""Between two rounds passes this share of the time that it is unanswered, at least and at most so many seconds."""
LOOK_SECONDS = 0.25
PROBE_SECONDS = 3.0
"""That a server may take to welcome the client."""


class Prober:
    """Runs beside a connection. ``waiting_since`` says since when the oldest request of the open session is unanswered,
    None if none is; ``others`` gives the addresses to ask; ``probe`` asks one of them; ``found`` is told the first that
    welcomes the client."""

    def __init__(
        self,
        waiting_since: Callable[[], float | None],
        others: Callable[[], list[str]],
        probe: Callable[[str], bool],
        found: Callable[[str, float], None],
        clock: Callable[[], float],
    ) -> None:
        self._waiting_since, self._others, self._probe, self._found = waiting_since, others, probe, found
        self._clock = clock
        self._since: float | None = None
        self._next = 0.0

    def run(self, closed: threading.Event) -> None:
        while not closed.wait(self.look()):
            pass

    def look(self) -> float:
        """Ask if it is time. The seconds until the next look."""
        since = self._waiting_since()
        if since is None:
            self._since = None
            return LOOK_SECONDS
        if since != self._since:
            self._since, self._next = since, since + FIRST_PROBE
        if self._clock() >= self._next:
            address = next(filter(self._probe, self._others()), None)
            if address is not None and self._waiting_since() == since:
                self._found(address, since)
            now = self._clock()
            self._next = now + min(max(SHARE * (now - since), SHORTEST), LONGEST)
        return max(min(self._next - self._clock(), LOOK_SECONDS), 0.01)


def welcomes(address: str, token: str, credentials: grpc.ChannelCredentials | None, hello: Hello) -> bool:
    """Does the server at this address begin a session with the client?"""
    sent: queue.SimpleQueue[Head | None] = queue.SimpleQueue()
    sent.put(Head(request=1, hello=hello))

    def outgoing() -> Iterator[Frame]:
        while (head := sent.get()) is not None:
            yield from frames(head)

    assembler = Assembler()
    with channel_to(address, credentials, one_of_several=True) as channel:
        call, helpers = open_session(channel, outgoing(), token, PROBE_SECONDS)
        try:
            for frame in call:
                if (whole := assembler.add(frame)) is not None:
                    return bool(whole[0].HasField("welcome"))
        except (grpc.RpcError, WireError):
            pass
        finally:
            call.cancel()
            sent.put(None)
            wait_for_helpers(helpers)
    return False
