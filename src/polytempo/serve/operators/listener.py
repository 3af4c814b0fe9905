"""A listener for an asyncio protocol. It limits the connections, those of one peer, and how long each may last. A
handshake counts as a connection. A newcomer is always let in: where there are too many, the oldest stranger goes."""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable
from functools import partial

from polytempo.serve.addresses import bind, peer_of
from polytempo_client.logs import log

STRANGERS = 128
"""Connections at a time whose operator is not known yet, ..."""
STRANGERS_OF_PEER = 32
"""... and of one peer: behind one address there may be several operators with a browser each. One more takes the place
of the oldest."""
SIGNED_IN = 64
"""Connections of operators at a time that no stranger can take the place of."""
SILENCE = 3.0
"""Seconds from the first packet to the first whole request, the handshake included."""
LIFETIME = 20.0
"""Seconds for one request and its reply."""
LARGEST_REQUEST = 32 << 10
"""Bytes, headers included. HTTP libraries keep much of what they refuse for longer than they should."""
BREATH = 0.1
"""Seconds until it is tried again when the machine has no room for a connection."""


class Visitor:
    """One that was accepted."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.asked = asyncio.Event()
        """A whole request has come."""
        self.gone = asyncio.Event()
        self.transport: asyncio.BaseTransport | None = None


class Listener:
    """Listens on an address and gives each connection a protocol of its own. Whoever serves them tells it of the
    transports on which a request has come, and of those whose operator has signed in."""

    def __init__(self, make_protocol: Callable[[], asyncio.Protocol], lifetime: float = LIFETIME) -> None:
        self.turned_away = 0
        self._make_protocol = make_protocol
        self._lifetime = lifetime
        self._strangers: list[Visitor] = []
        """Oldest first."""
        self._signed_in: list[Visitor] = []
        self._by_transport: dict[asyncio.BaseTransport, Visitor] = {}
        self._attending: set[asyncio.Task[None]] = set()

    def note_request(self, transport: asyncio.BaseTransport | None) -> None:
        """A whole request has come here."""
        if transport in self._by_transport:
            self._by_transport[transport].asked.set()

    def note_operator(self, transport: asyncio.BaseTransport | None) -> None:
        """The request came from an operator."""
        connection = None if transport is None else self._by_transport.get(transport)
        if connection in self._strangers and len(self._signed_in) < SIGNED_IN:
            self._strangers.remove(connection)
            self._signed_in.append(connection)

    async def open(self, address: str, context: ssl.SSLContext | None) -> int:
        """The port that is listened on. A certificate that the context loads later counts from the next handshake."""
        self._socket = await asyncio.to_thread(bind, address, "--admin")  # a name may take a while to look up
        self._socket.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(context))
        return int(self._socket.getsockname()[1])

    async def close(self) -> None:
        """Nobody comes in any more, and whoever is there is cut off."""
        tasks = [self._accepting, *self._attending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()

    async def _accept(self, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(self._socket)
            except OSError as error:  # no file descriptors left, or a connection that was gone at once
                log("not accepted", level=logging.WARNING, reason=str(error))
                await asyncio.sleep(BREATH)
                continue
            newcomer = Visitor(peer_of(address[0]))
            self._strangers.append(newcomer)
            self._make_room(newcomer.peer)
            task = asyncio.create_task(self._attend(connection, newcomer, context))
            self._attending.add(task)
            task.add_done_callback(self._attending.discard)

    def _make_room(self, peer: str) -> None:
        """Turn the oldest stranger away if there are too many, that of the peer or of the one that has the most."""
        counts = Counter(stranger.peer for stranger in self._strangers)
        if counts[peer] > STRANGERS_OF_PEER:
            crowd = peer
        elif len(self._strangers) > STRANGERS:
            crowd = max(counts, key=counts.__getitem__)
        else:
            return
        oldest = next(stranger for stranger in self._strangers if stranger.peer == crowd)
        self._strangers.remove(oldest)
        oldest.gone.set()
        self.turned_away += 1

    async def _attend(self, accepted: socket.socket, connection: Visitor, context: ssl.SSLContext | None) -> None:
        serving = asyncio.create_task(self._serve(accepted, connection, context))
        leaving = asyncio.create_task(connection.gone.wait())
        try:
            await asyncio.wait((serving, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            serving.cancel()
            leaving.cancel()
            await asyncio.gather(serving, leaving, return_exceptions=True)
            for group in (self._strangers, self._signed_in):
                if connection in group:
                    group.remove(connection)
            if connection.transport is not None:
                del self._by_transport[connection.transport]

    async def _serve(self, accepted: socket.socket, connection: Visitor, context: ssl.SSLContext | None) -> None:
        loop = asyncio.get_running_loop()
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(SILENCE):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: _Watched(self._make_protocol(), partial(self._made, connection), connection.gone),
                    accepted,
                    ssl=context,
                )
                await connection.asked.wait()
            async with asyncio.timeout(self._lifetime):
                await connection.gone.wait()
        except (OSError, TimeoutError):  # no handshake, or too slow
            pass
        finally:
            if transport is None:
                accepted.close()
            else:
                transport.abort()

    def _made(self, connection: Visitor, transport: asyncio.BaseTransport) -> None:
        connection.transport = transport
        self._by_transport[transport] = connection


class _Watched(asyncio.Protocol):
    """A protocol that is given no more than a request may have, and word of its beginning and end."""

    def __init__(
        self, protocol: asyncio.Protocol, made: Callable[[asyncio.BaseTransport], None], gone: asyncio.Event
    ) -> None:
        self._made, self._gone = made, gone
        self._protocol = protocol
        self._received = 0
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made(transport)
        self._protocol.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > LARGEST_REQUEST:
            self._gone.set()  # which cuts it off
        else:
            self._protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)
        self._gone.set()
