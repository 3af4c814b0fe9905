"""A listener for an asyncio protocol. It limits the connections, those of one peer, and how long each may last. A
handshake counts as a connection."""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable

from polytempo.serve.addresses import bind, peer_of
from polytempo.serve.logs import log

CONNECTIONS = 128
"""At a time, ..."""
CONNECTIONS_OF_PEER = 32
"""... and of one peer: behind one address there may be several operators with a browser each."""
LIFETIME = 20.0
"""Seconds for one request and its reply, from the first packet to the last."""
HANDSHAKE = 5.0
"""Seconds."""
LARGEST_REQUEST = 32 << 10
"""Bytes, headers included. HTTP libraries keep much of what they refuse for longer than they should."""
BREATH = 0.1
"""Seconds until it is tried again when the machine has no room for a connection."""


class Listener:
    """Listens on an address and gives each connection a protocol of its own."""

    def __init__(self, make_protocol: Callable[[], asyncio.Protocol], lifetime: float = LIFETIME) -> None:
        self.turned_away = 0
        self._make_protocol = make_protocol
        self._lifetime = lifetime
        self._open: Counter[str] = Counter()
        self._attending: set[asyncio.Task[None]] = set()

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
            peer = peer_of(address[0])
            if self._open.total() >= CONNECTIONS or self._open[peer] >= CONNECTIONS_OF_PEER:
                self.turned_away += 1
                connection.close()
                continue
            self._open[peer] += 1
            task = asyncio.create_task(self._attend(connection, peer, context))
            self._attending.add(task)
            task.add_done_callback(self._attending.discard)

    async def _attend(self, connection: socket.socket, peer: str, context: ssl.SSLContext | None) -> None:
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        transport: asyncio.Transport | None = None
        handshake = None if context is None else HANDSHAKE
        try:
            async with asyncio.timeout(self._lifetime):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: _Watched(self._make_protocol(), gone),
                    connection,
                    ssl=context,
                    ssl_handshake_timeout=handshake,
                )
                await gone.wait()
        except (OSError, TimeoutError):  # no handshake, or too slow
            pass
        finally:
            if transport is None:
                connection.close()
            else:
                transport.abort()
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]


class _Watched(asyncio.Protocol):
    """A protocol that is given no more than a request may have, and word of its end."""

    def __init__(self, protocol: asyncio.Protocol, gone: asyncio.Event) -> None:
        self._gone = gone
        self._protocol = protocol
        self._received = 0
        self.eof_received = protocol.eof_received  # type: ignore[method-assign]
        self.connection_made = protocol.connection_made  # type: ignore[method-assign]
        self.pause_writing = protocol.pause_writing  # type: ignore[method-assign]
        self.resume_writing = protocol.resume_writing  # type: ignore[method-assign]

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > LARGEST_REQUEST:
            self._gone.set()  # which cuts it off
        else:
            self._protocol.data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._protocol.connection_lost(exc)
        self._gone.set()
