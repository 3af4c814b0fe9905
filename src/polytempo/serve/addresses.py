"""Where a server may be reached without TLS."""

import ipaddress

from polytempo.core.errors import UserError


def check_loopback(address: str) -> None:
    """Plaintext may not leave the machine."""
    host = address.rpartition(":")[0].strip("[]")
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name, which may lead anywhere
        loopback = False
    if not loopback:
        raise UserError(f"Without TLS only loopback is allowed (127.0.0.1, ::1, localhost), not {address}.")
