"""Where a server listens, and who talks to it."""

import ipaddress
import socket
import urllib.parse
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from polytempo.core.errors import PassingError

Peer = tuple[str, int]
"""The other end of a connection: its address and port."""
LOOPBACK = ipaddress.ip_network("127.0.0.0/8")


def check_free(addresses: Mapping[str, str]) -> None:
    """Refuse addresses, by their options, that cannot be listened on now, all of them at once."""
    with ExitStack() as bound:
        for option, address in addresses.items():
            bound.enter_context(bind(address, option))


def bind(address: str, option: str) -> socket.socket:
    """A socket that listens there."""
    host, _, port = address.rpartition(":")
    try:
        family, _, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family)
    except (OSError, ValueError, OverflowError):
        raise cannot_listen(address, option) from None


def cannot_listen(address: str, option: str) -> PassingError:
    return PassingError(
        f"Cannot listen on {address}. Is another program using the port, or is it not an address of this machine? "
        f"Choose another {option}."
    )


def peer_of(host: str) -> str:
    """Whom an address stands for: itself; or the network of 2^64 addresses that one subscriber is given in IPv6; or
    this machine, whichever of its loopback addresses it uses."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            return str(ipaddress.IPv6Network((address, 64), strict=False))
        address = address.ipv4_mapped
    return str(LOOPBACK) if address in LOOPBACK else str(address)


def peer_behind(address: tuple[Any, ...]) -> Peer:
    """The other end of a connection in the words of the socket module. IPv4 that arrives at an IPv6 socket is IPv4. The
    scope of a link-local address is left out, because the socket module does not always name it."""
    return address[0].partition("%")[0].removeprefix("::ffff:"), address[1]


def peer_named(name: str) -> Peer:
    """The same in gRPC's words: ``ipv4:192.0.2.7:1234``, ``ipv6:%5Bfe80::7%252%5D:1234``."""
    host, _, port = urllib.parse.unquote(name).partition(":")[2].rpartition(":")
    return host.strip("[]").partition("%")[0], int(port)
