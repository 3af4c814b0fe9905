"""HTTP/2 in raw bytes, for strangers who send headers that never end."""

import socket
import ssl
from pathlib import Path

HEADERS, SETTINGS, CONTINUATION = 1, 4, 9
MORE_FIELDS = b"\x00\x01a\x01b" * 3000
"""Header fields, as HPACK writes them without its table."""


def frame(kind: int, payload: bytes = b"", stream: int = 0) -> bytes:
    """Without flags: headers do not end here."""
    return len(payload).to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big") + payload


def begun_call() -> bytes:
    """The beginning of a connection and of a session's headers: POST, http, and the path."""
    path = b"\x83\x86\x04\x1d/polytempo.Federation/Session"
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS) + frame(HEADERS, path, 1)


def flood(port: int, ca: Path | None, most_bytes: int) -> int:
    """Bytes of headers that could be sent over one connection, until it was closed or these were sent."""
    sent, more = 0, frame(CONTINUATION, MORE_FIELDS, 1)
    with socket.create_connection(("127.0.0.1", port), 30) as plain, secured(plain, ca) as connection:
        try:
            connection.sendall(begun_call())
            while sent < most_bytes:
                connection.sendall(more)
                sent += len(more)
            while connection.recv(4096):
                pass
        except OSError:
            pass
    return sent


def secured(plain: socket.socket, ca: Path | None) -> socket.socket:
    """With TLS, if there is a CA to trust."""
    if ca is None:
        return plain
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(plain, server_hostname="localhost")
