"""Who talks to a server that runs: those who may, as long as they may, and nobody as somebody else."""

import logging
import ssl
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import grpc
import numpy as np
import pytest
from cryptography import x509
from safetensors.numpy import save_file

from polytempo.core.errors import UserError
from polytempo.serve.access import roster as rosters
from polytempo.serve.access.certs import make_certs, make_client_certificate
from polytempo.serve.access.enrolment import make_code
from polytempo.serve.access.tokens import make_operator, make_tokens, revoke_client
from polytempo_client.client import Client
from polytempo_client.protocol.framing import CLIENT_OPTIONS, SESSION
from polytempo_client.protocol.wire_pb2 import Frame, Head, Pull
from polytempo_client.session.credentials import read_token
from polytempo_client.session.enrolment import enrol_client
from polytempo_client.session.tls import client_credentials
from support.serving import Running, nudge, running, until
from support.strangers import stranger

pytestmark = pytest.mark.usefixtures("short_pauses")


def gave_up(client: Client) -> bool:
    """Does it try no more to connect?"""
    client._connection._thread.join(20)
    return not client._connection._thread.is_alive()


def kinds_of(server: Running, client: int) -> list[str]:
    return [event.kind for _, event in server.host.journal.events(0) if event.client == client]


# Revoking.


def test_revoking_ends_an_open_session_and_the_client_learns_why_and_does_not_come_again(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client(0) as client, server.client(1) as other:
        task = client.task(30)
        other.task(30)
        revoke_client(tmp_path, 0)
        with pytest.raises(UserError, match="cannot be joined: the token was revoked"):
            client.hold(task, 30)
        with pytest.raises(UserError, match="the token was revoked"):
            client.push(task, nudge(task), samples=5, timeout=30)
        assert gave_up(client)
        assert server.host.service.updates == 0
        other.run(lambda task: (nudge(task), 5), updates=1)


def test_the_task_of_a_revoked_client_is_withdrawn_and_the_strategy_is_told_that_it_left(tmp_path: Path) -> None:
    with running(tmp_path, participation="k:1") as server, server.client(0) as client, server.client(1) as other:
        client.task(30)
        revoke_client(tmp_path, 0)
        assert other.task(30).number  # it is its turn, since nobody waits for client 0
        assert not server.host.service.is_member(0)
        assert 0 not in server.host.service.flights
        assert kinds_of(server, 0) == ["joined", "ready", "left"]


def test_a_revoked_client_that_does_not_read_is_put_out_too_and_holds_nothing(tmp_path: Path) -> None:
    init = tmp_path / "large.safetensors"
    save_file({"weight": np.zeros(4 << 20, np.float32)}, init)
    with running(tmp_path, init=init) as server, stranger(server.address, server.token(0)) as deaf:
        deaf.hello()
        deaf.say(Head(pull=Pull()))
        until(lambda: kinds_of(server, 0) == ["joined", "pulled"])
        revoke_client(tmp_path, 0)
        until(lambda: not server.server._open)
        until(lambda: not server.host.service.is_member(0))
        deaf.say(Head(pull=Pull()))  # nobody hears it
        assert server.server._memory.taken == 0
        _, code = deaf.end()
        assert code == grpc.StatusCode.PERMISSION_DENIED
        until(lambda: not server.server._calls)
        assert kinds_of(server, 0) == ["joined", "pulled", "left"]


def test_a_client_whose_token_was_revoked_comes_again_with_a_new_one(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with server.client(0) as client:
            client.task(30)
            revoke_client(tmp_path, 0)
            assert gave_up(client)
        make_tokens(tmp_path, 1)
        with server.client(0) as client:
            client.run(lambda task: (nudge(task), 5), updates=1)
            assert server.host.service.members[0].updates == 1


# Expiry.


def test_a_session_ends_when_its_token_expires_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tokens(tmp_path, 1, days=30)
    make_tokens(tmp_path, 2)
    with running(tmp_path) as server, server.client(0) as client, server.client(1) as other:
        task = client.task(30)
        other.task(30)
        monkeypatch.setattr(server.shared.access, "now", (rosters.utc_now() + timedelta(days=31)).timestamp)
        with pytest.raises(UserError, match="the token has expired"):
            client.hold(task, 30)
        assert gave_up(client)
        other.run(lambda task: (nudge(task), 5), updates=1)
        with server.client(0) as again, pytest.raises(UserError, match="or it has expired"):
            again.wait_for_welcome(30)


# Operators and clients.


def test_an_operators_token_opens_no_session(tmp_path: Path) -> None:
    make_operator(tmp_path, "anna", "admin")
    make_tokens(tmp_path, 1)
    with running(tmp_path) as server:
        with server.client_with(read_token(tmp_path / "operator-anna.token")) as client:
            with pytest.raises(UserError, match="no client has this token"):
                client.wait_for_welcome(30)
            assert gave_up(client)
        assert server.shared.meters.refusals["token"] == 1
        assert server.shared.access.roster.operator_of(server.token(0), time.time()) is None


@pytest.mark.parametrize("said", ["", "Bearer", "Bearer ", "bearer {}", "Basic {}", "{}", "Bearer  {}", "Bearer {} x"])
def test_who_does_not_say_its_token_as_it_should_is_turned_away(tmp_path: Path, said: str) -> None:
    with running(tmp_path) as server, grpc.insecure_channel(server.address, CLIENT_OPTIONS) as channel:
        open_session = channel.stream_stream(SESSION, Frame.SerializeToString, Frame.FromString)
        call = open_session(iter(()), metadata=(("authorization", said.format(server.token(0))),), timeout=30)
        with pytest.raises(grpc.RpcError):
            next(call)
        assert call.code() == grpc.StatusCode.UNAUTHENTICATED
        assert not server.server._open


# Clients that show certificates.


@pytest.fixture
def certified(tmp_path: Path) -> Path:
    """A directory with certificates of the server and of clients 0 and 1."""
    directory = tmp_path / "ours"
    make_certs(directory, [])
    make_tokens(directory, 2)
    for client in range(2):
        make_client_certificate(directory, client)
    return directory


def pair(directory: Path, client: int) -> dict[str, tuple[Path, Path]]:
    return {"certificate": (directory / f"client-{client}.pem", directory / f"client-{client}.key")}


@pytest.fixture
def mutual(certified: Path) -> Iterator[Running]:
    with running(certified, security="mtls") as server:
        yield server


def test_with_its_token_and_its_own_certificate_a_client_takes_part(mutual: Running) -> None:
    with mutual.client_with(mutual.token(1), **pair(mutual.directory, 1)) as client:
        client.run(lambda task: (nudge(task), 5), updates=1)
        assert client.number == 1


def test_the_status_says_that_certificates_are_asked_for_and_when_they_end(mutual: Running) -> None:
    with mutual.client_with(mutual.token(1), **pair(mutual.directory, 1)) as client:
        client.wait_for_welcome(30)
        until(lambda: any(row["connected"] for row in mutual.host.status().get("clients", ())))
        said = mutual.host.status()
    (row,) = [row for row in said["clients"] if row["connected"]]
    assert said["mutual"]
    shown = x509.load_pem_x509_certificate((mutual.directory / "client-1.pem").read_bytes())
    assert row["certificate_expires"] == shown.not_valid_after_utc.timestamp()


def test_anothers_certificate_beside_ones_token_is_refused(mutual: Running) -> None:
    with mutual.client_with(mutual.token(0), **pair(mutual.directory, 1)) as client:
        with pytest.raises(UserError, match="certificate shown is not that of client 0"):
            client.wait_for_welcome(30)
        assert gave_up(client)
    assert mutual.host.service.members == {}


def turned_away_at_the_handshake(server: Running, credentials: grpc.ChannelCredentials) -> bool:
    """Does the handshake fail, before any token is looked at?"""
    with grpc.secure_channel(server.address, credentials, CLIENT_OPTIONS) as channel:
        open_session = channel.stream_stream(SESSION, Frame.SerializeToString, Frame.FromString)
        call = open_session(iter(()), metadata=(("authorization", f"Bearer {server.token(0)}"),), timeout=30)
        with pytest.raises(grpc.RpcError):
            next(call)
        return bool(call.code() == grpc.StatusCode.UNAVAILABLE and not server.shared.meters.refusals)


def test_without_a_certificate_or_with_one_of_another_ca_nobody_gets_to_the_token(
    mutual: Running, tmp_path: Path
) -> None:
    ours, theirs = mutual.directory, tmp_path / "theirs"
    make_certs(theirs, [])
    make_client_certificate(theirs, 0)
    assert turned_away_at_the_handshake(mutual, client_credentials(ours / "ca.pem"))
    assert turned_away_at_the_handshake(mutual, client_credentials(ours / "ca.pem", *pair(theirs, 0).values()))


def test_a_code_is_for_the_client_whose_certificate_is_shown(mutual: Running, tmp_path: Path) -> None:
    directory, out = mutual.directory, tmp_path / "mine.token"
    code, ca = make_code(directory, 1), directory / "ca.pem"
    with pytest.raises(UserError, match="code is for client 1, and the certificate shown is not"):
        enrol_client(mutual.address, code, out, ca, **pair(directory, 0))
    assert enrol_client(mutual.address, code, out, ca, **pair(directory, 1)).client == 1
    with mutual.client_with(read_token(out), **pair(directory, 1)) as client:
        assert client.wait_for_welcome(30)[0] == 1


def test_the_servers_own_certificate_is_no_clients(mutual: Running) -> None:
    ours = mutual.directory
    shown = client_credentials(ours / "ca.pem", (ours / "server.pem", ours / "server.key"))
    assert turned_away_at_the_handshake(mutual, shown)


# Certificates that are replaced.


def shown_by(server: Running) -> int:
    """The serial number of the certificate that the server shows at a new handshake."""
    host, _, port = server.address.partition(":")
    pem = ssl.get_server_certificate((host, int(port)), timeout=30)
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


def written(directory: Path) -> int:
    return x509.load_pem_x509_certificate((directory / "server.pem").read_bytes()).serial_number


def refresh(server: Running) -> None:
    assert server.certificate is not None
    server.certificate.refresh()


def test_a_new_certificate_counts_from_the_next_handshake_on_and_open_sessions_go_on(certified: Path) -> None:
    with running(certified, security="tls") as server, server.client(0) as client:
        task = client.task(30)
        before = shown_by(server)
        make_certs(certified, ["server.example.org"])
        assert shown_by(server) == before
        refresh(server)
        assert shown_by(server) == written(certified) != before
        client.push(task, nudge(task), samples=5, timeout=30)
        with server.client(1) as other:
            assert other.pull(30).version == 1
        assert [kind for kind in kinds_of(server, 0) if kind == "joined"] == ["joined"]


@pytest.mark.parametrize("damage", ["garbled", "foreign key", "missing"])
def test_a_bad_new_certificate_changes_nothing_and_is_logged(
    certified: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    with running(certified, security="tls") as server:
        before = written(certified)
        if damage == "garbled":
            (certified / "server.pem").write_bytes(b"garbage")
        elif damage == "missing":
            (certified / "server.pem").unlink()
        else:
            (certified / "server.key").write_bytes((certified / "client-0.key").read_bytes())
        with caplog.at_level(logging.ERROR, "polytempo"):
            refresh(server)
        assert [record.getMessage() for record in caplog.records] == ["certificate not taken"]
        assert shown_by(server) == before
        make_certs(certified, ["127.0.0.1"])
        refresh(server)
        assert shown_by(server) == written(certified) != before
