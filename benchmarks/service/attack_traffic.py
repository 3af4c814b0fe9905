"""What strangers send in ``attack_floods.py``. Each function runs in a process of its own, on loopback, with bounds on
bytes, connections and seconds, and tells at the end what it did."""

import socket
import ssl
import threading
import time
from contextlib import ExitStack, suppress
from itertools import cycle
from multiprocessing.connection import Connection

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEADERS, SETTINGS, CONTINUATION = 1, 4, 9


def frame(kind: int, payload: bytes = b"", stream: int = 0) -> bytes:
    """Of HTTP/2, without flags: headers do not end here."""
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload


def field(name: bytes, value: bytes) -> bytes:
    """Of a header, as HPACK writes it without its table."""
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


def beginning(path: bytes) -> bytes:
    """Of a connection and a call to this path."""
    fields = (field(b":path", path), field(b":authority", b"x"), field(b"content-type", b"application/grpc"))
    return PREFACE + frame(SETTINGS) + frame(HEADERS, b"\x83\x86" + b"".join(fields) + field(b"te", b"trailers"), 1)


def continuations() -> list[bytes]:
    """Of its headers, about a megabyte, each field with another name."""
    rows = [b"".join(field(b"h%d" % (1000 * i + j), b"v") for j in range(1000)) for i in range(90)]
    return [frame(CONTINUATION, row, 1) for row in rows]


def connect(port: int, secure: bool, source: str = "127.0.0.1") -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", port), 10, source_address=(source, 0))
    if not secure:
        return plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(plain)


def flood_headers(done: Connection, port: int, connections: int, most_bytes: int, seconds: float) -> None:
    """Headers without end, over so many connections at a time; one that is closed is followed by another."""
    ends, frames = time.monotonic() + seconds, continuations()
    sent, opened = [0] * connections, [0] * connections

    def flood(number: int) -> None:
        while sum(sent) < most_bytes and time.monotonic() < ends:
            with suppress(OSError), connect(port, secure=True) as connection:
                opened[number] += 1
                connection.settimeout(1.0)
                connection.sendall(beginning(b"/polytempo.Federation/Session"))
                for more in cycle(frames):
                    if sum(sent) >= most_bytes or time.monotonic() >= ends:
                        break
                    connection.sendall(more)
                    sent[number] += len(more)

    threads = [threading.Thread(target=flood, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.send((sum(sent), sum(opened)))


def hold_connections(done: Connection, port: int, secure: bool, connections: int, sources: int, seconds: float) -> None:
    """Connections that never say a word, from so many addresses, for so many seconds."""
    ends, opened = time.monotonic() + seconds, 0
    with ExitStack() as held:
        for number in range(connections):
            if time.monotonic() > ends:
                break
            with suppress(OSError):
                held.enter_context(connect(port, secure, f"127.0.0.{1 + number % sources}"))
                opened += 1
        time.sleep(max(ends - time.monotonic(), 0.0))
    done.send((0, opened))
