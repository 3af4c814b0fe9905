"""The client's side of enrolment: a one-time code becomes its token."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import grpc

from polytempo_client.disk.files import write_bytes
from polytempo_client.errors import UserError
from polytempo_client.protocol.framing import ENROL
from polytempo_client.protocol.wire_pb2 import Enrolled, Enrolment
from polytempo_client.session.addresses import Servers, check_all_loopback, servers_of
from polytempo_client.session.channels import channel_to
from polytempo_client.session.credentials import hash_of, read_token
from polytempo_client.session.failures import failure_of, hint_for, in_words
from polytempo_client.session.tls import Pair, client_credentials

SECONDS = 30.0
BUSY = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED)
"""What a server says that has too much to do."""


@dataclass(frozen=True)
class Enrolee:
    """Which client this is from now on."""

    client: int
    expires: datetime | None


def enrol_client(
    address: str | Sequence[str],
    code: str,
    out: Path,
    ca: Path | None = None,
    certificate: Pair | None = None,
    *,
    insecure: bool = False,
) -> Enrolee:
    """Make a token, let the server take it for the code, and keep it in ``out``. Until the server has said yes it lies
    in ``OUT.part``, so that a second try after a broken connection is the same enrolment."""
    servers = servers_of(address)
    if insecure:
        check_all_loopback(servers)
    elif ca is None:
        raise UserError("Give --ca, the ca.pem of whoever runs the server; or --insecure for plaintext on loopback.")
    if out.exists():
        raise UserError(f"{out} exists. Choose another --out, or remove it if that token counts no more.")
    import secrets  # here, because it takes long to import, and a client enrols once

    part = out.with_name(f"{out.name}.part")
    try:
        if not part.exists():
            write_bytes(part, f"{secrets.token_urlsafe(32)}\n".encode(), 0o600)
        request = Enrolment(code=code.strip(), token_sha256=hash_of(read_token(part)))
        credentials = None if insecure or ca is None else client_credentials(ca, certificate)
        reply = _enrol(servers, credentials, request, certificate is not None)
        part.replace(out)
    except OSError as error:
        raise UserError(f"Cannot write the token to {out}: {error.strerror}. Choose another --out.") from None
    return Enrolee(reply.client, datetime.fromtimestamp(reply.expires, timezone.utc) if reply.expires else None)


def _enrol(
    servers: Servers, credentials: grpc.ChannelCredentials | None, request: Enrolment, certified: bool
) -> Enrolled:
    """The reply of the first server that has one."""
    for address in servers.addresses:
        with channel_to(address, credentials, one_of_several=len(servers.addresses) > 1) as channel:
            call = channel.unary_unary(ENROL, Enrolment.SerializeToString, Enrolled.FromString)
            try:
                return _reply(call, request)
            except grpc.RpcError as error:
                failed: Any = error
                if failed.code() == grpc.StatusCode.UNAVAILABLE and address != servers.addresses[-1]:
                    continue
                reason = str(failed.details())
                hint = hint_for(reason, credentials is not None, certified)
                raise _failed(failed, f"{address} does not enrol this client: {in_words(reason)}{hint}") from None
    raise AssertionError  # there is a last address


def _failed(error: Any, text: str) -> UserError:
    kind = failure_of(error, "").error
    return UserError(text) if kind is None else type(kind)(text)


def _reply(call: Callable[..., Enrolled], request: Enrolment) -> Enrolled:
    """The server's reply; a server that is busy is asked again."""
    until = time.monotonic() + SECONDS
    while True:
        try:
            return call(request, timeout=SECONDS)
        except grpc.RpcError as error:
            busy: Any = error
            if busy.code() not in BUSY or time.monotonic() > until:
                raise
            time.sleep(1.0)
