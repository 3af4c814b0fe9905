"""Certificates: who trusts whom, and what is said of a file that is missing, garbled, expired or another's."""

import ipaddress
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from polytempo.core.errors import UserError
from polytempo.serve.access import certs, tls
from polytempo.serve.access.certs import make_certs, make_client_certificate
from polytempo.serve.access.tls import ServerCertificate
from polytempo_client.session import tls as client_tls
from polytempo_client.session.tls import client_credentials, pair_of


def server_credentials(directory):
    return ServerCertificate(directory).credentials()


def mode(path):
    return path.stat().st_mode & 0o777


@contextmanager
def echo_server(directory):
    """A gRPC server on loopback that answers every call with what it was sent; gives its port."""

    class Echo(grpc.GenericRpcHandler):
        def service(self, _):
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Echo()])
    port = server.add_secure_port("127.0.0.1:0", server_credentials(directory))
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


def call(target, ca, options=()):
    with grpc.secure_channel(target, client_credentials(ca), options) as channel:
        return channel.unary_unary("/test/echo")(b"hello", timeout=10)


def test_a_client_with_the_ca_reaches_the_server_and_one_with_another_ca_does_not(tmp_path):
    make_certs(tmp_path / "ours", [])
    make_certs(tmp_path / "theirs", [])
    with echo_server(tmp_path / "ours") as port:
        assert call(f"127.0.0.1:{port}", tmp_path / "ours" / "ca.pem") == b"hello"
        assert call(f"localhost:{port}", tmp_path / "ours" / "ca.pem") == b"hello"
        with pytest.raises(grpc.RpcError) as refused:
            call(f"127.0.0.1:{port}", tmp_path / "theirs" / "ca.pem")
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    assert "CERTIFICATE_VERIFY_FAILED" in refused.value.details()


def test_the_server_is_reached_under_its_own_names_only(tmp_path):
    make_certs(tmp_path, ["server.example.org"])
    with echo_server(tmp_path) as port:
        known, other = (
            [("grpc.ssl_target_name_override", name)] for name in ("server.example.org", "other.example.org")
        )
        assert call(f"127.0.0.1:{port}", tmp_path / "ca.pem", known) == b"hello"
        with pytest.raises(grpc.RpcError):
            call(f"127.0.0.1:{port}", tmp_path / "ca.pem", other)


def test_pythons_ssl_accepts_the_certificate_by_its_strict_rules(tmp_path):
    make_certs(tmp_path, [])
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done = set()
    for end in ends * 4:
        try:
            end.do_handshake()
            done.add(end)
        except ssl.SSLWantReadError:
            pass
    assert done == set(ends)


def test_names_and_addresses_are_in_the_certificate_each_as_its_kind_and_once(tmp_path):
    make_certs(tmp_path, ["Server.Example.org", "192.168.1.5", "fd00::5", "localhost", "LOCALHOST", "fl_server"])
    names = server_certificate(tmp_path).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example.org", "localhost", "fl_server"]
    assert names.get_values_for_type(x509.IPAddress) == [
        ipaddress.ip_address(address) for address in ("192.168.1.5", "fd00::5", "127.0.0.1", "::1")
    ]


def test_a_certificate_that_is_renewed_without_names_keeps_those_it_had(tmp_path):
    make_certs(tmp_path, ["server.example.org", "192.168.1.5"])
    before = server_certificate(tmp_path)
    assert make_certs(tmp_path, []) == ["server.example.org", "192.168.1.5", "localhost", "127.0.0.1", "::1"]
    after = server_certificate(tmp_path)
    assert after.serial_number != before.serial_number
    kind = x509.SubjectAlternativeName
    assert after.extensions.get_extension_for_class(kind) == before.extensions.get_extension_for_class(kind)
    (tmp_path / "server.pem").write_text("garbled")
    with pytest.raises(UserError, match="holds no certificate"):
        make_certs(tmp_path, [])


@pytest.mark.parametrize("new_first", [True, False])
def test_while_a_ca_takes_the_place_of_another_ca_pem_may_hold_both(tmp_path, new_first):
    old, new = tmp_path / "old", tmp_path / "new"
    make_certs(old, ["server.example.org"])
    make_certs(new, [])
    pems = [(new / "ca.pem").read_bytes(), (old / "ca.pem").read_bytes()]
    (old / "ca.pem").write_bytes(b"".join(pems if new_first else reversed(pems)))
    (old / "ca.key").write_bytes((new / "ca.key").read_bytes())
    make_certs(old, [])
    ca = x509.load_pem_x509_certificate((new / "ca.pem").read_bytes())
    server_certificate(old).verify_directly_issued_by(ca)


def server_certificate(directory):
    return x509.load_pem_x509_certificate((directory / "server.pem").read_bytes())


@pytest.mark.parametrize(
    "host", ["", " ", "a b", "host:443", "https://host", "-a", "a..b", "a.", "300.1.1.1", "[::1]", "ä", "*.a", "a" * 64]
)
def test_what_is_not_a_host_is_refused_before_anything_is_written(tmp_path, host):
    with pytest.raises(UserError, match="is not a host"):
        make_certs(tmp_path / "certs", [host])
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize("days", [0, -1, 10**9])
def test_an_impossible_number_of_days_is_refused(tmp_path, days):
    with pytest.raises(UserError, match="1 to 3650 days"):
        make_certs(tmp_path, [], days)


def test_only_the_owner_reads_the_keys(tmp_path):
    make_certs(tmp_path, [])
    found = {path.name: mode(path) for path in tmp_path.iterdir()}
    assert found == {"ca.pem": 0o644, "ca.key": 0o600, "server.pem": 0o644, "server.key": 0o600}


def test_a_ca_that_is_there_signs_the_next_certificate_too(tmp_path):
    make_certs(tmp_path, [])
    ca, first = (tmp_path / "ca.pem").read_bytes(), server_certificate(tmp_path)
    make_certs(tmp_path, ["server.example.org"])
    assert (tmp_path / "ca.pem").read_bytes() == ca
    assert server_certificate(tmp_path).serial_number != first.serial_number
    server_certificate(tmp_path).verify_directly_issued_by(x509.load_pem_x509_certificate(ca))


def test_a_ca_of_which_half_is_missing_or_foreign_is_not_replaced(tmp_path):
    make_certs(tmp_path / "ours", [])
    make_certs(tmp_path / "theirs", [])
    (tmp_path / "ours" / "ca.key").write_bytes((tmp_path / "theirs" / "ca.key").read_bytes())
    with pytest.raises(UserError, match="do not belong together"):
        make_certs(tmp_path / "ours", [])
    (tmp_path / "ours" / "ca.key").unlink()
    with pytest.raises(UserError, match=r"has ca\.pem but no ca\.key"):
        make_certs(tmp_path / "ours", [])


def later(monkeypatch, **time):
    class Later(datetime):
        @classmethod
        def now(cls, zone=None):
            return datetime.now(zone) + timedelta(**time)

    monkeypatch.setattr(certs, "datetime", Later)
    monkeypatch.setattr(tls, "datetime", Later)
    monkeypatch.setattr(client_tls, "datetime", Later)


def test_an_expired_server_certificate_is_an_error_until_certs_is_run_again(tmp_path, monkeypatch):
    make_certs(tmp_path, [], days=30)
    later(monkeypatch, days=29)
    server_credentials(tmp_path)
    later(monkeypatch, days=31)
    with pytest.raises(UserError, match=r"expired on .* Run `polytempo certs"):
        server_credentials(tmp_path)
    client_credentials(tmp_path / "ca.pem")
    make_certs(tmp_path, [], days=30)
    server_credentials(tmp_path)


def test_a_certificate_never_outlives_its_ca_and_an_expired_ca_is_an_error(tmp_path, monkeypatch):
    make_certs(tmp_path, [])
    later(monkeypatch, days=3600)
    make_certs(tmp_path, [], days=365)
    ca = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    assert server_certificate(tmp_path).not_valid_after_utc == ca.not_valid_after_utc
    later(monkeypatch, days=3651)
    with pytest.raises(UserError, match=r"expired on .* new ca\.pem"):
        client_credentials(tmp_path / "ca.pem")
    with pytest.raises(UserError, match=r"expired on .* make a new CA"):
        make_certs(tmp_path, [])


@pytest.mark.parametrize("name", ["server.pem", "server.key"])
def test_a_missing_or_garbled_server_file_is_an_error(tmp_path, name):
    make_certs(tmp_path, [])
    for garbled in (b"", b"garbage", (tmp_path / name).read_bytes().replace(b"M", b"!"), b"\xff"):
        (tmp_path / name).write_bytes(garbled)
        with pytest.raises(UserError, match=f"{name} holds no"):
            server_credentials(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UserError, match="There is no"):
        server_credentials(tmp_path)


def test_a_key_that_is_not_the_certificates_is_an_error(tmp_path):
    make_certs(tmp_path, [])
    (tmp_path / "server.key").write_bytes((tmp_path / "ca.key").read_bytes())
    with pytest.raises(UserError, match="do not belong together"):
        server_credentials(tmp_path)


def test_a_missing_or_garbled_ca_is_an_error_for_the_client(tmp_path):
    make_certs(tmp_path, [])
    with pytest.raises(UserError, match=r"ca\.key holds no certificate"):
        client_credentials(tmp_path / "ca.key")
    with pytest.raises(UserError, match="There is no"):
        client_credentials(tmp_path / "none.pem")
    with pytest.raises(UserError, match="Cannot read"):
        client_credentials(tmp_path)


def test_a_clients_certificate_is_for_its_name_signed_by_the_ca_and_for_nothing_but_clients(tmp_path):
    with pytest.raises(UserError, match="no CA in"):
        make_client_certificate(tmp_path, 3)
    make_certs(tmp_path, [])
    make_client_certificate(tmp_path, 3, days=30)
    certificate = x509.load_pem_x509_certificate((tmp_path / "client-3.pem").read_bytes())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes()))
    assert certificate.subject.rfc4514_string() == "CN=client-3"
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert mode(tmp_path / "client-3.key") == 0o600


def test_half_a_pair_or_a_foreign_one_is_an_error_for_the_client(tmp_path):
    make_certs(tmp_path, [])
    make_client_certificate(tmp_path, 0)
    make_client_certificate(tmp_path, 1)
    ca, certificate, key, foreign = (
        tmp_path / name for name in ("ca.pem", "client-0.pem", "client-0.key", "client-1.key")
    )
    client_credentials(ca, (certificate, key))
    for half in ((certificate, None), (None, key)):
        with pytest.raises(UserError, match="needs both files"):
            pair_of(*half)
    with pytest.raises(UserError, match="do not belong together"):
        client_credentials(ca, (certificate, foreign))
    for garbled in (b"", b"garbage", key.read_bytes().replace(b"M", b"!"), foreign.read_bytes()[:-40]):
        key.write_bytes(garbled)
        with pytest.raises(UserError, match=r"client-0\.key holds no private key"):
            client_credentials(ca, (certificate, key))
    for garbled in (b"", b"garbage", certificate.read_bytes().replace(b"M", b"!"), certificate.read_bytes()[:-60]):
        (tmp_path / "garbled.pem").write_bytes(garbled)
        with pytest.raises(UserError, match=r"garbled\.pem holds no certificate"):
            client_credentials(ca, (tmp_path / "garbled.pem", foreign))


def test_a_client_whose_own_certificate_has_expired_is_told(tmp_path, monkeypatch):
    make_certs(tmp_path, [])
    make_client_certificate(tmp_path, 0, days=30)
    later(monkeypatch, days=31)
    with pytest.raises(UserError, match=r"client-0\.pem expired on .* new pair"):
        client_credentials(tmp_path / "ca.pem", (tmp_path / "client-0.pem", tmp_path / "client-0.key"))


def test_a_key_with_a_password_is_an_error_and_not_a_prompt(tmp_path):
    make_certs(tmp_path, [])
    make_client_certificate(tmp_path, 0)
    key = tmp_path / "client-0.key"
    opened = serialization.load_pem_private_key(key.read_bytes(), password=None)
    locked = serialization.BestAvailableEncryption(b"secret")
    key.write_bytes(opened.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked))
    with pytest.raises(UserError, match="without a password"):
        client_credentials(tmp_path / "ca.pem", (tmp_path / "client-0.pem", key))


def test_a_server_that_asks_for_certificates_needs_the_ca(tmp_path):
    make_certs(tmp_path, [])
    (tmp_path / "ca.pem").unlink()
    ServerCertificate(tmp_path)
    with pytest.raises(UserError, match=r"There is no .*ca\.pem"):
        ServerCertificate(tmp_path, mutual=True)


def test_each_new_certificate_is_handed_to_grpc_once(tmp_path):
    make_certs(tmp_path, [])
    certificate = ServerCertificate(tmp_path)
    assert certificate._fetch() is None
    make_certs(tmp_path, ["fl.example.org"])
    certificate.refresh()
    assert certificate._fetch() is not None
    assert certificate._fetch() is None
