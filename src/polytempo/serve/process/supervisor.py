"""What whoever supervises the process is told."""

import os
import socket
from contextlib import suppress


def tell_supervisor(what: str) -> None:
    """Tell systemd how it goes (sd_notify), if it is there and asked for that (``Type=notify``)."""
    place = os.environ.get("NOTIFY_SOCKET", "")
    if place:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.sendto(what.encode(), "\0" + place[1:] if place.startswith("@") else place)
