"""TLS as a client needs it: what it checks the server with, and what it shows. The files are checked here because gRPC
itself says nothing about a garbled, expired or mismatched one and just fails every handshake. Python's own ``ssl`` has
to do: a library for certificates is more than a small device needs."""

import base64
import re
from datetime import datetime, timezone
from pathlib import Path

import grpc

from polytempo_client.disk.reading import read_given
from polytempo_client.errors import CertificateError
from polytempo_client.session.credentials import read_pem

Pair = tuple[str | Path, str | Path]
"""The files of a certificate and of its key."""

VERSION, UTC_TIME = 0xA0, 0x17
"""Tags of DER."""


def pair_of(certificate: Path | None, key: Path | None) -> Pair | None:
    """The two files as a pair; UserError if one of them is missing."""
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise CertificateError("A client's certificate needs both files: --cert client-N.pem and --key client-N.key.")
    return certificate, key


def client_credentials(ca: Path, certificate: Pair | None = None) -> grpc.ChannelCredentials:
    """What a client checks the server with, servers whose certificate this CA has signed and no others, and what it
    shows itself where the server asks for it."""
    roots = read_pem(ca, read_given)
    _check_certificates(ca, roots, "Ask whoever runs the server for its new ca.pem.")
    if certificate is None:
        return grpc.ssl_channel_credentials(root_certificates=roots)
    file, key = map(Path, certificate)
    advice = "Ask whoever runs the server for a new pair (`polytempo certs DIR --client N`)."
    pem, key_pem = read_pem(file), read_pem(key)
    _check_certificates(file, pem, advice)
    _check_pair(file, key, advice)
    return grpc.ssl_channel_credentials(roots, key_pem, pem)


def _check_certificates(path: Path, pem: bytes, advice: str) -> None:
    """All certificates of a file have to be readable, and not to have expired."""
    blocks = re.findall(b"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", pem, re.DOTALL)
    try:
        ends = [_expiry(base64.b64decode(b"".join(block.split()), validate=True)) for block in blocks]
        if not ends:
            raise ValueError
    except (ValueError, IndexError):
        raise CertificateError(f"{path} holds no certificate in PEM format. `polytempo certs` makes one.") from None
    for end in ends:
        if end < datetime.now(timezone.utc):
            raise CertificateError(f"The certificate in {path} expired on {end:%Y-%m-%d}. {advice}")


def _check_pair(certificate: Path, key: Path, advice: str) -> None:
    """The key has to be readable, and the certificate's."""
    import ssl  # here, because only some clients have a pair

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        if "MISMATCH" in str(error):
            raise CertificateError(
                f"{key.name} and {certificate.name} in {key.parent} do not belong together. {advice}"
            ) from None
        raise CertificateError(
            f"{key} holds no private key in PEM format without a password. `polytempo certs` makes one."
        ) from None


def _expiry(der: bytes) -> datetime:
    """When a certificate ends (RFC 5280, section 4.1)."""
    to_be_signed = _parts(_parts(der)[0][1])[0][1]
    _, _, _, validity = [content for tag, content in _parts(to_be_signed) if tag != VERSION][:4]
    tag, until = _parts(validity)[1]
    form = "%y%m%d%H%M%SZ" if tag == UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(until.decode("ascii"), form).replace(tzinfo=timezone.utc)


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Tags and contents of the values that follow each other in DER."""
    parts = []
    while der:
        tag, length, begin = der[0], der[1], 2
        if length >= 0x80:  # so many bytes with the length follow
            begin += length - 0x80
            length = int.from_bytes(der[2:begin], "big")
        if begin + length > len(der):
            raise ValueError("cut off")
        parts.append((tag, der[begin : begin + length]))
        der = der[begin + length :]
    return parts
