"""Certificates for a federation without an authority of its own: a CA, and certificates signed by it for
the server and, where clients show one too, for each client. Clients trust ``ca.pem`` and nothing else."""

import ipaddress
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from polytempo.core.disk.files import make_directory, write_shared
from polytempo.core.errors import UserError
from polytempo.serve.access.roster import client_name
from polytempo.serve.access.tls import certificates, check_not_expired, private_key
from polytempo.serve.paths import CA_CERTIFICATE, CA_KEY, SERVER_CERTIFICATE
from polytempo_client.disk.files import write_bytes
from polytempo_client.session.credentials import read_pem

CA_DAYS = 3650
ALWAYS_NAMED = ("localhost", "127.0.0.1", "::1")
CLOCK_SKEW = timedelta(days=1)  # a client whose clock is slow accepts a new certificate all the same
LABEL = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"


def make_certs(directory: Path, hosts: Sequence[str], days: int = 365) -> list[str]:
    """Write a server certificate for ``hosts`` (DNS names and IP addresses; loopback's are always in it) that is valid
    for ``days``: ``server.pem`` and ``server.key``. Without hosts, for those of the certificate that it replaces. A CA
    in the directory (``ca.pem``, ``ca.key``) signs it; if there is none, one is made first. Returns the names."""
    _check_days(days)
    given = [_general_name(host) for host in hosts] or _names_in(directory / SERVER_CERTIFICATE)
    names = list(dict.fromkeys([*given, *map(_general_name, ALWAYS_NAMED)]))
    try:
        make_directory(directory, 0o700)
        ca, ca_key = _read_ca(directory) or _make_ca(directory)
        _make_certificate(
            directory, "server", "Polytempo server", names, ExtendedKeyUsageOID.SERVER_AUTH, days, ca, ca_key
        )
    except OSError as error:
        raise _unwritable(directory, error) from None
    return [str(name.value) for name in names]


def make_client_certificate(directory: Path, client: int, days: int = 365) -> None:
    """Write a certificate for one client, signed by the directory's CA: ``client-N.pem`` and ``client-N.key``. A server
    with ``--mtls`` talks to nobody without one."""
    _check_days(days)
    try:
        signer = _read_ca(directory)
        if signer is None:
            raise UserError(f"There is no CA in {directory}. `polytempo certs {directory}` makes one.")
        name = client_name(client)
        _make_certificate(directory, name, name, [x509.DNSName(name)], ExtendedKeyUsageOID.CLIENT_AUTH, days, *signer)
    except OSError as error:
        raise _unwritable(directory, error) from None


def _names_in(certificate: Path) -> list[x509.GeneralName]:
    """Of the certificate in this file; none, if there is no file."""
    if not certificate.exists():
        return []
    try:
        (shown, *_) = certificates(certificate, read_pem(certificate))
        return list(shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return []


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        name = host.lower()
    is_name = re.fullmatch(rf"{LABEL}(\.{LABEL})*", name) and len(name) <= 253
    if not is_name or name.split(".")[-1].isdigit():
        raise UserError(
            f"{host!r} is not a host: give a DNS name such as server.example.org (ASCII letters, digits, hyphens) or "
            "an IP address such as 192.168.1.5, without scheme or port."
        )
    return x509.DNSName(name)


def _read_ca(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    certificate_file, key_file = directory / CA_CERTIFICATE, directory / CA_KEY
    if not certificate_file.exists() and not key_file.exists():
        return None
    advice = (
        f"Restore ca.pem and ca.key in {directory}, or remove both to make a new CA "
        "(every client then needs the new ca.pem)."
    )
    if not certificate_file.exists() or not key_file.exists():
        there, missing = (CA_KEY, CA_CERTIFICATE) if key_file.exists() else (CA_CERTIFICATE, CA_KEY)
        raise UserError(f"{directory} has {there} but no {missing}, and a CA needs both. {advice}")
    known, key = certificates(certificate_file, read_pem(certificate_file)), private_key(key_file, read_pem(key_file))
    # While one CA takes the place of another, clients trust both.
    certificate = next((one for one in known if one.public_key() == key.public_key()), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or certificate is None:
        raise UserError(f"ca.key and ca.pem in {directory} do not belong together. {advice}")
    check_not_expired(certificate_file, certificate, advice)
    return certificate, key


def _make_ca(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Polytempo CA")
    certificate = (
        _builder(name, name, key.public_key(), _now() + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    _write_pair(directory, "ca", certificate, key)
    return certificate, key


def _make_certificate(
    directory: Path,
    file: str,
    common_name: str,
    names: Sequence[x509.GeneralName],
    usage: x509.ObjectIdentifier,
    days: int,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(_now() + timedelta(days=days), ca.not_valid_after_utc)
    certificate = (
        _builder(_name(common_name), ca.subject, key.public_key(), end)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    _write_pair(directory, file, certificate, key)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - CLOCK_SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _key_usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_pair(directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    """The server has to read its own pair, and the CA's certificate; all else stays with whoever made it."""
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    (write_shared if name == "server" else write_bytes)(directory / f"{name}.key", key_pem, 0o600)
    (write_shared if name in ("server", "ca") else write_bytes)(directory / f"{name}.pem", pem, 0o644)


def _check_days(days: int) -> None:
    if not 1 <= days <= CA_DAYS:
        raise UserError(f"A certificate for {days} days is not possible: give 1 to {CA_DAYS} days.")


def _unwritable(directory: Path, error: OSError) -> UserError:
    return UserError(f"Cannot write certificates to {directory}: {error.strerror}. Choose another directory.")


def _now() -> datetime:
    return datetime.now(UTC)
