"""Where servers are reached, and where they may be without TLS."""

import ipaddress
import re

from polytempo_client.errors import UserError


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT is reached from this machine only."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        plain = re.fullmatch(r"[\w:.]+(%\w+)?", host) is not None  # Python takes anything for a scope
        return host == "localhost" or (plain and ipaddress.ip_address(host).is_loopback)
    except ValueError:  # a name, which may lead anywhere
        return False


def check_loopback(address: str) -> None:
    """Plaintext may not leave the machine."""
    if not is_loopback(address):
        raise UserError(f"Without TLS only loopback is allowed (127.0.0.1, ::1, localhost), not {address}.")


def checked_address(address: str) -> str:
    """The same, if it is HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"\[[0-9a-fA-F:.%\w]+\]|[\w.-]+", host) or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{address!r} is no address. Expected HOST:PORT, for example 127.0.0.1:7733 or [::1]:7733.")
    return address
