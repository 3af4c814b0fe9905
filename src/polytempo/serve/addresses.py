"""Where a server is reached, and where it may be without TLS."""

import ipaddress
import re
import socket

from polytempo.core.errors import PassingError, UserError


def check_loopback(address: str) -> None:
    """Plaintext may not leave the machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may lead anywhere
        loopback = False
    if not loopback:
        raise UserError(f"Without TLS only loopback is allowed (127.0.0.1, ::1, localhost), not {address}.")


def checked_address(address: str) -> str:
    """The same, if it is HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"\[[0-9a-fA-F:.%\w]+\]|[\w.-]+", host) or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{address!r} is no address. Expected HOST:PORT, for example 127.0.0.1:7733 or [::1]:7733.")
    return address


def check_free(address: str, option: str) -> None:
    """Refuse an address that cannot be listened on now."""
    host, _, port = address.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
        socket.create_server(found[0][4][:2], family=found[0][0]).close()
    except OSError:
        raise cannot_listen(address, option) from None


def cannot_listen(address: str, option: str) -> PassingError:
    return PassingError(
        f"Cannot listen on {address}. Is another program using the port, or is it not an address of this machine? "
        f"Choose another {option}."
    )
