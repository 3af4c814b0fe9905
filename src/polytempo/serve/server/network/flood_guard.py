"""Closes connections that flood the clients' listener. gRPC bounds what a call may hold, not what a connection may send
before there is a call, so the guard looks at the sockets themselves: what the kernel has received on each, beside what
the sessions on it account for. It has a thread of its own, because a flood keeps the loop busy. Linux only: elsewhere
there is no guard."""

import errno
import logging
import os
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from polytempo.serve.addresses import Peer, peer_behind
from polytempo_client.logs import log

LOOK_EVERY = 0.01
"""Minimum seconds between two looks."""
SHARE = 0.05
"""Maximum share of one core that looking takes. The pause between two looks is longer where it would take more."""
AFTER_FAILURE = 1.0
"""Seconds between a look that failed and the next."""
STRANGER_BYTES = 16 << 10
"""Maximum bytes a connection may send before it has a session. A handshake and an enrolment take a few kB."""
SESSION_BYTES = 32 << 20
"""Maximum bytes a connection with a session may send within a minute beyond its messages, when memory is short. gRPC
reads ahead of a session by a few MB."""
MINUTE = 60.0
AFTER_SESSION = 30.0
"""Seconds after the end of its session in which a connection may still send ``SESSION_BYTES``: the rest of a message
that was refused half-way is on its way."""
RECEIVED = struct.Struct("128x Q")
"""``tcpi_bytes_received`` in Linux's ``tcp_info``."""

Reason = Literal["flood", "silent"]


@dataclass(frozen=True, slots=True)
class Baseline:
    """Where counting began on a connection. ``received`` is None if that was not looked at, ``accounted`` is None
    without a session. ``ended``: it began because a session ended."""

    at: float
    received: int | None
    accounted: int | None
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """``strangers``: connections without a session at a time. ``silent_seconds``: how long one may be without."""

    strangers: int
    silent_seconds: float


def judge(
    marks: Mapping[Peer, Baseline],
    received: Mapping[Peer, int],
    sessions: Mapping[Peer, int],
    now: float,
    bounds: Bounds,
) -> tuple[dict[Peer, Baseline], dict[Peer, Reason]]:
    """Which connections to close, and what to remember until the next look. ``received`` has the bytes of each
    connection that was looked at, ``sessions`` those that messages account for where there is a session."""
    kept = {
        peer: _mark(marks.get(peer), received.get(peer), sessions.get(peer), now) for peer in {**received, **sessions}
    }
    closing: dict[Peer, Reason] = {}
    for peer, count in received.items():
        mark, accounted = kept[peer], sessions.get(peer)
        beyond = count - (mark.received or 0) - ((accounted or 0) - (mark.accounted or 0))
        if beyond > (STRANGER_BYTES if accounted is None and not mark.ended else SESSION_BYTES):
            closing[peer] = "flood"
        elif accounted is None and now - mark.at > bounds.silent_seconds:
            closing[peer] = "silent"
    left = sorted((kept[peer].at, peer) for peer in received if peer not in sessions and peer not in closing)
    return kept, closing | {peer: "silent" for _, peer in left[: max(len(left) - bounds.strangers, 0)]}


def _mark(before: Baseline | None, received: int | None, accounted: int | None, now: float) -> Baseline:
    if before is None and accounted is None:
        return Baseline(now, 0, None)  # all that a new connection has sent counts
    if before is not None and accounted is None and before.accounted is not None:
        return Baseline(now, received, None, ended=True)
    if (
        before is None
        or before.received is None
        or received is None
        or (before.accounted is None) != (accounted is None)
        or (before.ended and now - before.at > AFTER_SESSION)
        or (accounted is not None and (accounted < (before.accounted or 0) or now - before.at > MINUTE))
    ):
        return Baseline(now, received, accounted)
    return before


@dataclass(frozen=True, slots=True)
class Closed:
    peer: Peer
    bytes: int
    reason: Reason


class FloodGuard:
    """Guards the connections to one port of this process. ``sessions`` has the bytes that the sessions of each
    connection account for; ``is_short`` says whether memory is. Both are called from the guard's thread, as is
    ``on_closed``."""

    def __init__(
        self,
        port: int,
        sessions: Callable[[], Mapping[Peer, int]],
        bounds: Callable[[], Bounds],
        is_short: Callable[[], bool],
        on_closed: Callable[[list[Closed]], None],
    ) -> None:
        self._port, self._sessions, self._bounds = port, sessions, bounds
        self._is_short, self._on_closed = is_short, on_closed
        self._peers: dict[int, Peer] = {}
        """By file descriptor. A number that another connection has taken between two looks keeps its old peer until
        that one is to be closed: then nothing is closed, and the number is looked at anew."""
        self._shut: set[Peer | None] = set()
        """Closed here, and not yet by gRPC."""
        self._marks: dict[Peer, Baseline] = {}
        self._failures: set[type[Exception]] = set()
        """Kinds that were logged."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="flood-guard", daemon=True)

    def start(self) -> None:
        if sys.platform == "linux":
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        pause = LOOK_EVERY
        while not self._stop.wait(pause):
            began = time.thread_time()
            try:
                self.look()
            except Exception as error:  # no file or no memory left: a flood must not end the guard
                self._failed(error)
                pause = AFTER_FAILURE
            else:
                pause = max(LOOK_EVERY, (time.thread_time() - began) / SHARE)

    def _failed(self, error: Exception) -> None:
        """Log the first failure of each kind."""
        if type(error) not in self._failures:
            self._failures.add(type(error))
            log("flood guard failed", level=logging.ERROR, error=error)

    def look(self) -> None:
        """Look at all connections once, and close those that flood."""
        sessions, is_short = self._sessions(), self._is_short()
        self._find_connections()
        numbers = {peer: fd for fd, peer in self._peers.items()}
        counts = {peer: bytes_received(fd) for peer, fd in numbers.items() if is_short or peer not in sessions}
        received = {peer: count for peer, count in counts.items() if count is not None}
        self._marks, closing = judge(self._marks, received, sessions, time.monotonic(), self._bounds())
        closed = [
            Closed(peer, received[peer], reason)
            for peer, reason in closing.items()
            if shut_down(numbers[peer], self._port, peer)
        ]
        for peer in closing:
            del self._peers[numbers[peer]], self._marks[peer]  # its number may belong to somebody else by now
        self._shut.update(one.peer for one in closed)
        if closed:
            self._on_closed(closed)

    def _find_connections(self) -> None:
        numbers = {int(name) for name in os.listdir("/proc/self/fd")}
        self._peers = {fd: peer for fd, peer in self._peers.items() if fd in numbers}
        others = {fd: _peer_of(fd, self._port) for fd in numbers - self._peers.keys()}
        self._shut &= set(others.values())
        self._peers |= {fd: peer for fd, peer in others.items() if peer is not None and peer not in self._shut}


@contextmanager
def _duplicate(fd: int) -> Iterator[socket.socket]:
    """Who holds a duplicate may act on it: its number cannot pass to another connection meanwhile. OSError if it is no
    socket."""
    if not _is_socket(fd):
        raise OSError(errno.ENOTSOCK, "it is no socket")
    duplicate = os.dup(fd)
    if not _is_socket(duplicate):
        # The number passed to a file in between. Closing the duplicate would drop the locks that SQLite has on that
        # file, so it stays open.
        raise OSError(errno.ENOTSOCK, "it is no socket any more")
    with socket.socket(fileno=duplicate) as connection:
        yield connection


def _is_socket(fd: int) -> bool:
    return stat.S_ISSOCK(os.fstat(fd).st_mode)


def _peer_of(fd: int, port: int) -> Peer | None:
    """Who is connected to the port by this file descriptor, if it is such a connection."""
    with suppress(OSError), _duplicate(fd) as connection:
        return _peer_at(connection, port)
    return None


def _peer_at(connection: socket.socket, port: int) -> Peer | None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6) or connection.getsockname()[1] != port:
        return None
    return peer_behind(connection.getpeername())


def bytes_received(fd: int) -> int | None:
    """By the kernel, on this connection; None if there is none any more."""
    with suppress(OSError, struct.error):
        borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=fd)
        try:
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RECEIVED.size)
            return int(RECEIVED.unpack(info)[0])
        finally:
            borrowed.detach()  # it is gRPC's to close
    return None


def shut_down(fd: int, port: int, peer: Peer) -> bool:
    """Whether this connection was there to be closed."""
    with suppress(OSError), _duplicate(fd) as connection:
        if _peer_at(connection, port) == peer:
            connection.shutdown(socket.SHUT_RDWR)
            _discard(connection)
            return True
    return False


def _discard(connection: socket.socket) -> None:
    """Take away from gRPC what the kernel still holds: parsing it would keep others waiting."""
    unread = bytearray(1 << 16)
    with suppress(BlockingIOError):
        while connection.recv_into(unread, flags=socket.MSG_TRUNC | socket.MSG_DONTWAIT):
            pass
