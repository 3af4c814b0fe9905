"""Where a service listens, as the command line says: TLS, certificates of clients, the operators' page."""

import fcntl
import socket
import ssl
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from typer.testing import CliRunner

from polytempo.cli import serving as commands
from polytempo.cli.main import app, main
from polytempo.core.errors import UserError
from polytempo.serve.access.certs import make_certs, make_client_certificate
from polytempo.serve.access.live import Access
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.process import options
from polytempo.serve.process.options import Endpoints, Listening
from polytempo.serve.server.network import sessions as server_module
from polytempo.serve.server.refusals import CONTESTED
from polytempo.serve.storage import documents
from polytempo_client.client import Client
from polytempo_client.session.connection import TAKEN_OVER
from polytempo_client.session.failures import hint_for
from support.serving import free_port, nudge, running, until
from support.whole_service import Service, whole

pytestmark = pytest.mark.usefixtures("short_pauses")


@pytest.fixture
def certified(tmp_path: Path) -> Path:
    make_certs(tmp_path, [])
    make_tokens(tmp_path, 2)
    make_client_certificate(tmp_path, 0)
    return tmp_path


def pair(directory: Path, client: int) -> dict[str, tuple[Path, Path]]:
    return {"certificate": (directory / f"client-{client}.pem", directory / f"client-{client}.key")}


def shown_at(address: str) -> int:
    """The serial number of the certificate that is shown there."""
    host, _, port = address.rpartition(":")
    pem = ssl.get_server_certificate((host, int(port)), timeout=30)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


def written(directory: Path) -> int:
    return x509.load_pem_x509_certificate((directory / "server.pem").read_bytes()).serial_number


def test_the_options_of_the_command_line_are_where_it_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Endpoints] = []
    monkeypatch.setattr(commands, "run_service", lambda options, _: opened.append(options.endpoints))
    for words in (["--listen", "0.0.0.0:1", "--mtls", "--admin", "127.0.0.1:2"], ["--insecure"]):
        CliRunner().invoke(app, ["serve", "fedasync", *words], catch_exceptions=False)
    assert opened == [
        Endpoints("0.0.0.0:1", insecure=False, mutual=True, admin="127.0.0.1:2"),
        Endpoints("127.0.0.1:7733", insecure=True, mutual=False, admin=None),
    ]


@pytest.mark.parametrize(
    ("words", "warns"),
    [
        (["--listen", "0.0.0.0:1"], True),
        (["--listen", "fl.example.org:1"], True),
        (["--listen", "0.0.0.0:1", "--mtls"], False),
        (["--listen", "127.0.0.1:1"], False),
        (["--listen", "[::1]:1", "--insecure"], False),
    ],
)
def test_a_start_beyond_loopback_without_certificates_names_the_risk_and_the_remedies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], warns: bool
) -> None:
    def listening(asked: Any, tell: Any) -> None:
        tell(Listening(asked.endpoints.address, not asked.endpoints.insecure, 10, 0))

    monkeypatch.setattr(commands, "run_service", listening)
    monkeypatch.setattr(sys, "argv", ["polytempo", "serve", "fedasync", *words])
    with pytest.raises(SystemExit, match="0"):
        main()
    said = capsys.readouterr().err
    assert ("flood the server with headers" in said, "--mtls" in said, "deploy/nginx.conf" in said) == (warns,) * 3


def test_a_start_beyond_loopback_without_certificates_is_logged(
    certified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "is_loopback", lambda _: False)
    with whole(certified, Endpoints("127.0.0.1:0")) as service:
        (row,) = service.logged("no certificates asked for")
        assert "--mtls" in row["reason"]


def test_with_mtls_only_the_same_clients_certificate_beside_its_token_opens(certified: Path) -> None:
    with whole(certified, Endpoints("127.0.0.1:0", mutual=True)) as service:
        with service.client(0, **pair(certified, 0)) as client:
            client.run(lambda task: (nudge(task), 5), updates=1)
        with service.client(1, **pair(certified, 0)) as thief, pytest.raises(UserError, match="not that of client 1"):
            thief.wait_for_welcome(30)
        with service.client(0) as bare, pytest.raises(TimeoutError):
            bare.wait_for_welcome(0.5)


@pytest.mark.parametrize("names", [["client-1\0"], ["client-1\0.evil"], ["client-1", "client-0"], ["client-11"], []])
def test_a_certificate_is_that_of_a_client_only_by_its_one_whole_name(certified: Path, names: list[str]) -> None:
    """What a CA of one's own may have signed."""
    ca_key = serialization.load_pem_private_key((certified / "ca.key").read_bytes(), None)
    ca = x509.load_pem_x509_certificate((certified / "ca.pem").read_bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(cast("ec.EllipticCurvePrivateKey", ca_key), hashes.SHA256())
    )
    (certified / "odd.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    (certified / "odd.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    odd = {"certificate": (certified / "odd.pem", certified / "odd.key")}
    with (
        whole(certified, Endpoints("127.0.0.1:0", mutual=True)) as service,
        service.client(1, **odd) as client,
        pytest.raises(UserError, match="not that of client 1"),
    ):
        client.wait_for_welcome(30)


@pytest.mark.parametrize("endpoints", [Endpoints("127.0.0.1:0"), Endpoints("127.0.0.1:0", admin="127.0.0.1:0")])
def test_a_new_certificate_is_shown_at_every_endpoint_by_itself(certified: Path, endpoints: Endpoints) -> None:
    with whole(certified, endpoints) as service:
        addresses = [address for address in (service.address, service.admin) if address]
        assert {shown_at(address) for address in addresses} == {written(certified)}
        make_certs(certified, [])
        for address in addresses:
            until(lambda: shown_at(address) == written(certified))  # noqa: B023


def test_a_certificate_that_came_in_two_steps_is_taken_when_it_is_whole(certified: Path) -> None:
    with whole(certified, Endpoints("127.0.0.1:0")) as service:
        before, new = written(certified), certified / "new"
        new.mkdir()
        for name in ("ca.pem", "ca.key"):
            (new / name).write_bytes((certified / name).read_bytes())
        make_certs(new, [])
        (certified / "server.pem").write_bytes((new / "server.pem").read_bytes())
        until(lambda: service.logged("certificate not taken"))
        assert shown_at(service.address) == before
        (certified / "server.key").write_bytes((new / "server.key").read_bytes())
        until(lambda: shown_at(service.address) == written(new))
        assert len(service.logged("certificate not taken")) == 1


# A client that was welcome outlives mistakes with certificates.


def test_a_client_waits_until_a_wrong_certificate_is_mended_and_reads_its_own_files_again(tmp_path: Path) -> None:
    ours, theirs, port = tmp_path / "ours", tmp_path / "theirs", free_port()
    for directory in (ours, theirs):
        make_certs(directory, [])
        make_tokens(directory, 1)
    at = Endpoints(f"127.0.0.1:{port}")
    ca = tmp_path / "ca.pem"
    ca.write_bytes((ours / "ca.pem").read_bytes())
    with whole(ours, at):
        client = Client(at.address, ours / "client-0.token", ca)
        client.task(30)
    try:
        for name in ("server.pem", "server.key"):
            (ours / name).write_bytes((theirs / name).read_bytes())  # of a CA that the client does not know
        with whole(ours, at):
            with pytest.raises(TimeoutError):
                client.pull(0.5)
            ca.write_bytes((ours / "ca.pem").read_bytes() + (theirs / "ca.pem").read_bytes())
            assert client.pull(30).version == 0
    finally:
        client.close()


def test_a_client_that_was_never_welcome_gives_up_at_a_wrong_certificate(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        make_certs(tmp_path / name, [])
        make_tokens(tmp_path / name, 1)
    with (
        whole(tmp_path / "ours", Endpoints("127.0.0.1:0")) as service,
        Client(service.address, tmp_path / "ours/client-0.token", tmp_path / "theirs/ca.pem") as client,
        pytest.raises(UserError, match="the CA in this file did not sign"),
    ):
        client.wait_for_welcome(30)


@pytest.mark.parametrize(
    ("secure", "certified", "hint"),
    [(False, False, "speak TLS"), (True, False, "ask for a certificate"), (True, True, "not accept this client's")],
)
def test_a_connection_that_is_closed_without_a_word_is_explained(secure: bool, certified: bool, hint: str) -> None:
    assert hint in hint_for("Socket closed", secure, certified)
    assert hint_for("Connection refused", secure, certified) == ""


def test_two_programs_with_one_token_do_not_throw_each_other_out_for_ever(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client(0) as one, server.client(0) as other:
        failed: list[Any] = []
        until(lambda: failed.extend(c for c in (one, other) if c._connection.failure is not None) or failed)
        assert "by somebody else with this client's token" in str(failed[0]._connection.failure)
        left = other if failed[0] is one else one
        left.run(lambda task: (nudge(task), 5), updates=1)
        refusals = server.shared.meters.refusals
        assert refusals["replaced"] == CONTESTED - 1
        assert refusals["contested"] > TAKEN_OVER - CONTESTED


# Who connects and says nothing.


def test_connections_without_a_session_and_half_open_handshakes_are_closed(
    certified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = {"grpc.server_handshake_timeout_ms": 300, "grpc.max_connection_idle_ms": 300}
    options = tuple((name, quick.get(str(name), value)) for name, value in server_module.SERVER_OPTIONS)
    assert set(quick) <= {name for name, _ in server_module.SERVER_OPTIONS}
    monkeypatch.setattr(server_module, "SERVER_OPTIONS", options)
    with whole(certified, Endpoints("127.0.0.1:0")) as service:
        host, _, port = service.address.rpartition(":")
        with socket.create_connection((host, int(port)), 30) as half_open:
            assert closed_by_the_other_side(half_open)
        context = ssl.create_default_context(cafile=certified / "ca.pem")
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((host, int(port)), 30) as raw,
            context.wrap_socket(raw, server_hostname="127.0.0.1") as idle,
        ):
            idle.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            assert closed_by_the_other_side(idle)


def closed_by_the_other_side(connection: socket.socket) -> bool:
    connection.settimeout(20)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def test_a_service_whose_roster_is_locked_by_a_stopped_command_still_stops(
    certified: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "LOCK_SECONDS", 0.5)
    with (certified / ".access.json.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        service = Service(certified, Endpoints("127.0.0.1:0"))
        Access(certified).quarantine(1, "rubbish")
        stopping = threading.Thread(target=service.stop)
        stopping.start()
        stopping.join(30)
        assert not stopping.is_alive()
