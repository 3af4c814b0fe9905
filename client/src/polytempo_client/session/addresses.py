"""Where servers are reached, and where they may be without TLS."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from polytempo_client.errors import UserError


@dataclass(frozen=True)
class Servers:
    """The addresses (HOST:PORT) of one service. A client goes from one to the next until a server has its session.
    ``give_up_after`` so many seconds without a session it ends with UnreachableError; None: it tries for ever."""

    addresses: tuple[str, ...]
    give_up_after: float | None = None

    def __post_init__(self) -> None:
        if not self.addresses:
            raise UserError("A client needs the address of its server: HOST:PORT, or several of them.")
        for address in self.addresses:
            checked_address(address)
        if self.give_up_after is not None and not self.give_up_after > 0:
            raise UserError(f"give_up_after is {self.give_up_after!r}. Expected seconds above 0, or None for never.")

    def __str__(self) -> str:
        return ",".join(self.addresses)


def servers_of(given: str | Sequence[str] | Servers) -> Servers:
    """The servers for an address, or for several: as a list, or in one word with commas between."""
    if isinstance(given, Servers):
        return given
    addresses = given.split(",") if isinstance(given, str) else given
    return Servers(tuple(address.strip() for address in addresses))


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT is reached from this machine only."""
    import ipaddress  # here, because it takes long to import, and plaintext is rare

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


def check_all_loopback(servers: Servers) -> None:
    for address in servers.addresses:
        check_loopback(address)


def checked_address(address: str) -> str:
    """The same, if it is HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not re.fullmatch(r"\[[0-9a-fA-F:.%\w]+\]|[\w.-]+", host) or not port.isdecimal() or int(port) > 65535:
        raise UserError(f"{address!r} is no address. Expected HOST:PORT, for example 127.0.0.1:7733 or [::1]:7733.")
    return address
