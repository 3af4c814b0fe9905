"""Tokens, certificates, and the two commands that make them."""

import ipaddress
import json
import ssl
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import grpc
import pytest
import typer
from cryptography import x509
from typer.testing import CliRunner

from polytempo.cli import access as commands
from polytempo.core.errors import UserError
from polytempo.serve import certs
from polytempo.serve.access import Roster, make_tokens, read_token, revoke_token
from polytempo.serve.certs import client_credentials, make_certs, server_credentials

SHA = "0123456789abcdef" * 4


def mode(path):
    return path.stat().st_mode & 0o777


def roster(directory):
    return Roster.read(directory / "clients.json")


def test_a_token_finds_its_own_client_and_no_other(tmp_path):
    files = make_tokens(tmp_path, 3)
    tokens = [read_token(file) for file in files]
    assert [file.name for file in files] == ["client-0.token", "client-1.token", "client-2.token"]
    assert [roster(tmp_path).client_of(token) for token in tokens] == [0, 1, 2]
    assert len(roster(tmp_path)) == 3


@pytest.mark.parametrize("stranger", ["", "0", "x" * 43, "\udcff", "\0", SHA])
def test_a_token_of_nobody_finds_nobody(tmp_path, stranger):
    make_tokens(tmp_path, 2)
    assert roster(tmp_path).client_of(stranger) is None


def test_the_hash_of_a_token_is_not_a_token(tmp_path):
    make_tokens(tmp_path, 1)
    (sha,) = json.loads((tmp_path / "clients.json").read_text()).values()
    assert roster(tmp_path).client_of(sha) is None


def test_the_server_keeps_hashes_and_no_token(tmp_path):
    tokens = [read_token(file) for file in make_tokens(tmp_path, 2)]
    text = (tmp_path / "clients.json").read_text()
    assert all(token not in text for token in tokens)
    assert [len(sha) for sha in json.loads(text).values()] == [64, 64]


def test_only_the_owner_reads_tokens_and_hashes_and_nothing_else_is_left(tmp_path):
    make_tokens(tmp_path / "new", 1)
    found = {path.name: mode(path) for path in (tmp_path / "new").iterdir()}
    assert found == {"clients.json": 0o600, "client-0.token": 0o600}
    assert mode(tmp_path / "new") == 0o700


def test_tokens_added_later_leave_the_old_ones_valid(tmp_path):
    old = [read_token(file) for file in make_tokens(tmp_path, 2)]
    assert [file.name for file in make_tokens(tmp_path, 4)] == ["client-2.token", "client-3.token"]
    assert make_tokens(tmp_path, 3) == []
    assert [roster(tmp_path).client_of(token) for token in old] == [0, 1]
    assert len(roster(tmp_path)) == 4


def test_a_token_file_that_was_handed_over_and_deleted_is_not_made_again(tmp_path):
    (file,) = make_tokens(tmp_path, 1)
    token = read_token(file)
    file.unlink()
    assert make_tokens(tmp_path, 1) == []
    assert roster(tmp_path).client_of(token) == 0


def test_a_crash_before_the_hashes_are_written_leaves_tokens_that_are_made_anew(tmp_path, monkeypatch):
    def crash(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("polytempo.serve.access._write_hashes", crash)
        with pytest.raises(KeyboardInterrupt):
            make_tokens(tmp_path, 1)
    lost = read_token(tmp_path / "client-0.token")
    (file,) = make_tokens(tmp_path, 1)
    assert roster(tmp_path).client_of(lost) is None
    assert roster(tmp_path).client_of(read_token(file)) == 0


def test_a_write_that_fails_keeps_the_old_roster_and_leaves_no_temporary_file(tmp_path, monkeypatch):
    make_tokens(tmp_path, 1)
    before = (tmp_path / "clients.json").read_bytes()

    def disk_full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(UserError, match="No space left"):
        make_tokens(tmp_path, 2)
    assert (tmp_path / "clients.json").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"clients.json", "client-0.token"}


def test_a_revoked_token_is_nobodys_and_its_client_can_get_a_new_one(tmp_path):
    revoked, kept = [read_token(file) for file in make_tokens(tmp_path, 2)]
    revoke_token(tmp_path, 0)
    assert not (tmp_path / "client-0.token").exists()
    assert [roster(tmp_path).client_of(token) for token in (revoked, kept)] == [None, 1]
    (file,) = make_tokens(tmp_path, 2)
    assert roster(tmp_path).client_of(read_token(file)) == 0
    assert roster(tmp_path).client_of(revoked) is None


def test_revoking_what_is_not_there_is_an_error(tmp_path):
    with pytest.raises(UserError, match="Client 0 has no token"):
        revoke_token(tmp_path, 0)
    make_tokens(tmp_path, 1)
    with pytest.raises(UserError, match="Client 7 has no token"):
        revoke_token(tmp_path, 7)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ('{"0": ', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not an object"),
        (json.dumps({"-1": SHA}), "not the number of a client"),
        (json.dumps({"01": SHA}), "not the number of a client"),
        (json.dumps({"anna": SHA}), "not the number of a client"),
        (json.dumps({"0": SHA[1:]}), "no sha256"),
        (json.dumps({"0": SHA.upper()}), "no sha256"),
        (json.dumps({"0": 5}), "no sha256"),
        (json.dumps({"0": SHA, "1": SHA}), "same token"),
    ],
)
def test_a_damaged_roster_is_refused_and_never_overwritten(tmp_path, text, problem):
    (tmp_path / "clients.json").write_text(text)
    with pytest.raises(UserError, match=problem):
        roster(tmp_path)
    with pytest.raises(UserError, match=problem):
        make_tokens(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["clients.json"]
    assert (tmp_path / "clients.json").read_text() == text


def test_a_roster_that_is_missing_or_unreadable_is_an_error_that_says_what_to_do(tmp_path):
    with pytest.raises(UserError, match="polytempo tokens"):
        roster(tmp_path)
    with pytest.raises(UserError, match="Cannot read"):
        Roster.read(tmp_path)
    (tmp_path / "clients.json").write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="not JSON"):
        roster(tmp_path)


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"\xff\xff", "schlüssel".encode()])
def test_a_token_file_without_one_word_of_ascii_is_refused(tmp_path, content):
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(UserError, match="holds no token"):
        read_token(tmp_path / "token")


def test_a_token_is_read_without_the_space_around_it(tmp_path):
    (tmp_path / "token").write_text("  secret\r\n\n")
    assert read_token(tmp_path / "token") == "secret"
    with pytest.raises(UserError, match="No such file"):
        read_token(tmp_path / "none")


@pytest.mark.parametrize("make", [lambda path: make_tokens(path, 1), lambda path: make_certs(path, [])])
def test_a_directory_that_cannot_be_written_is_an_error(tmp_path, make):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Choose another directory"):
        make(tmp_path / "file" / "below")


def test_tokens_for_no_clients_are_refused(tmp_path):
    with pytest.raises(UserError, match="from 1 on"):
        make_tokens(tmp_path, 0)


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
        ipaddress.ip_address(address) for address in ("192.168.1.5", "fd00::5", "127.0.0.1")
    ]


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
    now = datetime.now(UTC) + timedelta(**time)
    monkeypatch.setattr(certs, "_now", lambda: now)


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


@pytest.fixture
def polytempo():
    app = typer.Typer()
    app.command()(commands.certs)
    app.command()(commands.tokens)
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False).stdout


def test_the_commands_make_what_server_and_clients_need_and_say_who_gets_what(tmp_path, polytempo):
    printed = polytempo("certs", tmp_path, "--host", "10.0.0.7", "--host", "server.example.org", "--days", 30)
    assert "a new CA" in printed
    assert "give ca.pem to every client" in printed
    assert "a new CA" not in polytempo("certs", tmp_path)
    printed = polytempo("tokens", tmp_path, "--clients", 8)
    assert str(tmp_path / "client-7.token") in printed
    assert read_token(tmp_path / "client-7.token") not in printed
    assert "nothing to do" in polytempo("tokens", tmp_path, "--clients", 8)
    assert "removed client 3" in polytempo("tokens", tmp_path, "--revoke", 3)
    assert len(roster(tmp_path)) == 7


@pytest.mark.parametrize("options", [[], ["--clients", 2, "--revoke", 1]])
def test_the_tokens_command_wants_exactly_one_thing_to_do(tmp_path, polytempo, options):
    with pytest.raises(UserError, match="either --clients N"):
        polytempo("tokens", tmp_path, *options)
