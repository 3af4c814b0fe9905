"""TLS from files: what a server shows and asks for. The files are checked here because gRPC itself says nothing about a
garbled, expired or mismatched pair and just fails every handshake."""

import logging
import ssl
from collections import deque
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import grpc.aio
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import NameOID

from polytempo.core.errors import UserError
from polytempo.serve.paths import CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY
from polytempo_client.logs import log
from polytempo_client.session.credentials import read_pem

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
"""One call of somebody's."""


class ServerCertificate:
    """``server.pem`` and ``server.key`` of a directory. New files count from the next handshake on; connections that
    are open go on. ``mutual``: clients have to show a certificate that ``ca.pem`` has signed."""

    def __init__(self, directory: Path, mutual: bool = False) -> None:
        self._directory, self._mutual = directory, mutual
        self._stamp = self._look()
        self._problem = ""
        self.expires = 0.0
        """When the certificate ends, in seconds since 1970."""
        self._first = self._read()
        self._fresh: deque[grpc.ServerCertificateConfiguration] = deque(maxlen=1)
        """What gRPC has not been told of yet."""
        self._web: ssl.SSLContext | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """For gRPC."""
        return grpc.dynamic_ssl_server_credentials(self._first, self._fetch, self._mutual)

    def web_context(self) -> ssl.SSLContext:
        """For the pages of operators, who show a token and no certificate."""
        self._web = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._web.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load_web()
        return self._web

    def refresh(self) -> None:
        """Take new files, if there are any and they are good."""
        stamp = self._look()
        if stamp == self._stamp:
            return
        try:
            fresh = self._read()
            self._load_web()
            self._fresh.append(fresh)
            self._stamp, self._problem = stamp, ""
            log("certificate read", level=logging.WARNING)
        except (UserError, ssl.SSLError, OSError) as error:  # it is tried again: half of a pair may be there
            if str(error) != self._problem:
                log("certificate not taken", level=logging.ERROR, reason=str(error))
            self._problem = str(error)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC, on threads of its own, at every handshake. Each new certificate is handed over once: gRPC
        replaces what it is given without a lock, and when several handshakes do so at once the process crashes."""
        try:
            return self._fresh.pop()
        except IndexError:
            return None

    def _load_web(self) -> None:
        if self._web is not None:
            self._web.load_cert_chain(self._directory / SERVER_CERTIFICATE, self._directory / SERVER_KEY)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        directory = self._directory
        pem, key_pem = read_pem(directory / SERVER_CERTIFICATE), read_pem(directory / SERVER_KEY)
        advice = f"Run `polytempo certs {directory}` again with the server's --host names."
        show = checked_pair(directory / SERVER_CERTIFICATE, pem, directory / SERVER_KEY, key_pem, advice)
        roots = None
        if self._mutual:
            roots = read_pem(directory / CA_CERTIFICATE)
            certificates(directory / CA_CERTIFICATE, roots)
        self.expires = certificates(directory / SERVER_CERTIFICATE, pem)[0].not_valid_after_utc.timestamp()
        return grpc.ssl_server_certificate_configuration([show], root_certificates=roots)

    def _look(self) -> tuple[int, ...]:
        paths = [
            self._directory / name
            for name in (SERVER_CERTIFICATE, SERVER_KEY, *([CA_CERTIFICATE] if self._mutual else []))
        ]
        return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in paths)


def checked_pair(certificate: Path, pem: bytes, key: Path, key_pem: bytes, advice: str) -> tuple[bytes, bytes]:
    """Key and certificate, which belong together and have not expired."""
    shown = certificates(certificate, pem)[0]
    if private_key(key, key_pem).public_key() != shown.public_key():
        raise UserError(f"{key.name} and {certificate.name} in {key.parent} do not belong together. {advice}")
    check_not_expired(certificate, shown, advice)
    return key_pem, pem


def certificates(path: Path, pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        raise UserError(f"{path} holds no certificate in PEM format. `polytempo certs` makes one.") from None


def private_key(path: Path, pem: bytes) -> PrivateKeyTypes:
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise UserError(
            f"{path} holds no private key in PEM format without a password. `polytempo certs` makes one."
        ) from None


def check_not_expired(path: Path, certificate: x509.Certificate, advice: str) -> None:
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise UserError(f"The certificate in {path} expired on {certificate.not_valid_after_utc:%Y-%m-%d}. {advice}")


def common_names(context: Context) -> tuple[str, ...]:
    """Of the certificate that the other side has shown. gRPC's own word for it ends at a NUL, and leaves out a second
    name."""
    names = [one.subject.get_attributes_for_oid(NameOID.COMMON_NAME) for one in _shown(context)]
    return tuple(str(name.value) for of_one in names for name in of_one)


def certificate_end(context: Context) -> float | None:
    """When the certificate that the other side has shown expires, in seconds since 1970."""
    return min((one.not_valid_after_utc.timestamp() for one in _shown(context)), default=None)


def _shown(context: Context) -> list[x509.Certificate]:
    return [x509.load_pem_x509_certificate(pem) for pem in context.auth_context().get("x509_pem_cert", ())]
