"""What whoever supervises the process is told."""

import os
import socket
from contextlib import suppress


def tell_supervisor(what: str) -> None:
    """Tell systemd how it goes (sd_notify), if it is there and asked for that (``Type=notify``)."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.sendto(what.encode(), "\0" + address[1:] if address.startswith("@") else address)
