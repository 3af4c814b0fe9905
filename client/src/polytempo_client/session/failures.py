"""Why a session could not be opened, or ended: what gRPC says, in words, and what to do about it."""

from typing import Any, NamedTuple

import grpc

from polytempo_client.errors import AccessError, CertificateError, TokenError, UserError, VersionError
from polytempo_client.protocol.framing import NOT_HERE


class FailedAttempt(NamedTuple):
    """Of one attempt."""

    reason: str
    error: UserError | None = None
    """What to give up with; None: trying again may help."""
    elsewhere: bool = False
    """Another server has the service."""

    @property
    def wrong_certificate(self) -> bool:
        """It says so of the server only: another one of the same service may have the right one."""
        return isinstance(self.error, CertificateError)


WRONG_CERTIFICATE = {
    "CERTIFICATE_VERIFY_FAILED": "the CA in this file did not sign the server's certificate, or it has expired. Take "
    "the ca.pem of whoever runs the server.",
    "Hostname Verification": "the server's certificate is for another host name. Make one with `polytempo certs DIR "
    "--host NAME`, with the name by which clients reach it.",
    "WRONG_VERSION_NUMBER": "the server speaks plaintext. Use --insecure on loopback.",
}
"""What gRPC says of a wrong certificate, host name or protocol, which have no code of their own, and what it means."""
HOPELESS: dict[grpc.StatusCode, type[UserError]] = {
    grpc.StatusCode.UNAUTHENTICATED: TokenError,
    grpc.StatusCode.PERMISSION_DENIED: AccessError,
    grpc.StatusCode.UNIMPLEMENTED: VersionError,
}


def failure_of(error: Any, address: str) -> FailedAttempt:
    """What the end of a call means."""
    details = str(error.details())
    reason = in_words(details)
    kind = CertificateError if reason in WRONG_CERTIFICATE.values() else HOPELESS.get(error.code())
    elsewhere = error.code() == grpc.StatusCode.UNAVAILABLE and details.startswith(NOT_HERE)
    return FailedAttempt(reason, None if kind is None else kind(f"{address} cannot be joined: {reason}"), elsewhere)


def in_words(reason: str) -> str:
    found = (words for sign, words in WRONG_CERTIFICATE.items() if sign in reason)
    return next(found, f"{reason.removesuffix('.')}.")


def hint_for(reason: str, secure: bool, certified: bool) -> str:
    """A server that expects TLS, or another certificate, closes the connection without a word."""
    if "Socket closed" not in reason:
        return ""
    if not secure:
        return " (does the server speak TLS? Leave --insecure out, and give --ca)"
    if not certified:
        return " (does the server ask for a certificate? --cert, --key)"
    return " (does the server not accept this client's certificate? Look at its CA, its dates, and this clock)"
