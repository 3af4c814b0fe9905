"""Floods of strangers: their connections are closed, and honest clients go on."""

import errno
import fcntl
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.addresses import Peer, peer_behind, peer_named
from polytempo.serve.server.network import flood_guard
from polytempo.serve.server.network import sessions as server_module
from polytempo.serve.server.network.flood_guard import (
    AFTER_SESSION,
    MINUTE,
    SESSION_BYTES,
    STRANGER_BYTES,
    Baseline,
    Bounds,
    Closed,
    FloodGuard,
    bytes_received,
    judge,
    shut_down,
)
from polytempo_client.protocol.bodies import entries_of, make_body
from polytempo_client.protocol.wire_pb2 import Head, Hello, Push, Ready
from support.floods import flood, secured
from support.serving import Running, nudge, running, until
from support.strangers import stranger

pytestmark = pytest.mark.usefixtures("short_pauses")
ANNA, BEN, CARL = ("192.0.2.1", 1001), ("192.0.2.2", 1002), ("192.0.2.3", 1003)
WIDE = Bounds(strangers=100, silent_seconds=30.0)
PATIENT = Bounds(strangers=100, silent_seconds=1000.0)


def others_work(server: Running) -> None:
    with server.client(1) as other:
        other.run(lambda task: (nudge(task), 5), updates=1)


# What is decided.


def test_a_stranger_may_send_little_and_all_that_a_new_connection_sent_counts() -> None:
    _, closing = judge({}, {ANNA: STRANGER_BYTES, BEN: STRANGER_BYTES + 1}, {}, 0.0, WIDE)
    assert closing == {BEN: "flood"}


def test_a_session_may_send_as_much_as_it_accounts_for_and_somewhat_more() -> None:
    marks, closing = judge({}, {ANNA: 10**9, BEN: 10**9}, {ANNA: 0, BEN: 0}, 0.0, WIDE)
    assert closing == {}
    much, sent = 10**8, 10**9 + 10**8 + SESSION_BYTES
    _, closing = judge(marks, {ANNA: sent, BEN: sent + 1}, {ANNA: much, BEN: much}, 1.0, WIDE)
    assert closing == {BEN: "flood"}


def test_a_session_is_judged_by_its_last_minute() -> None:
    marks, _ = judge({}, {ANNA: 0}, {ANNA: 0}, 0.0, WIDE)
    marks, closing = judge(marks, {ANNA: 2 * SESSION_BYTES}, {ANNA: 0}, MINUTE + 1, WIDE)
    assert (marks[ANNA], closing) == (Baseline(MINUTE + 1, 2 * SESSION_BYTES, 0), {})


def test_what_a_session_sent_does_not_count_against_its_connection_afterwards() -> None:
    marks, _ = judge({}, {}, {ANNA: 10**6}, 0.0, WIDE)  # nobody looked at its bytes
    marks, closing = judge(marks, {ANNA: 10**6}, {}, 1.0, WIDE)
    assert closing == {}
    after = 1.0 + AFTER_SESSION + 1.0
    marks, closing = judge(marks, {ANNA: 10**6}, {}, after, PATIENT)
    assert closing == {}
    _, closing = judge(marks, {ANNA: 10**6 + STRANGER_BYTES + 1}, {}, after + 1.0, PATIENT)
    assert closing == {ANNA: "flood"}


def test_the_rest_of_a_message_that_was_refused_half_way_is_no_flood() -> None:
    marks, _ = judge({}, {}, {ANNA: 10**6, BEN: 10**6}, 0.0, WIDE)
    marks, _ = judge(marks, {ANNA: 10**6, BEN: 10**6}, {}, 1.0, WIDE)
    rest = 10**6 + SESSION_BYTES
    marks, closing = judge(marks, {ANNA: rest, BEN: rest + 1}, {}, 2.0, WIDE)
    assert closing == {BEN: "flood"}
    _, closing = judge(marks, {ANNA: rest}, {}, 1.0 + AFTER_SESSION + 1.0, PATIENT)
    assert closing == {}


def test_who_opens_no_session_in_time_is_closed() -> None:
    marks, closing = judge({}, {ANNA: 500, BEN: 500}, {}, 0.0, WIDE)
    assert closing == {}
    _, closing = judge(marks, {ANNA: 500, BEN: 500}, {BEN: 0}, 31.0, WIDE)
    assert closing == {ANNA: "silent"}


def test_of_too_many_strangers_the_oldest_go() -> None:
    marks, _ = judge({}, {BEN: 0}, {}, 0.0, WIDE)
    marks, _ = judge(marks, {ANNA: 0, BEN: 0}, {}, 1.0, WIDE)
    few = Bounds(strangers=2, silent_seconds=30.0)
    _, closing = judge(marks, {ANNA: 0, BEN: 0, CARL: 0}, {}, 2.0, few)
    assert closing == {BEN: "silent"}


def test_a_connection_that_is_gone_is_forgotten() -> None:
    marks, _ = judge({}, {ANNA: 0, BEN: 0}, {}, 0.0, WIDE)
    assert judge(marks, {BEN: 0}, {}, 1.0, WIDE)[0].keys() == {BEN}


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("ipv4:192.0.2.7:1234", ("192.0.2.7", 1234)),
        ("ipv4:192.0.2.7:1234", ("::ffff:192.0.2.7", 1234, 0, 0)),
        ("ipv6:%5B2001:db8::7%5D:1234", ("2001:db8::7", 1234, 0, 0)),
        ("ipv6:%5Bfe80::7%254%5D:1234", ("fe80::7", 1234, 0, 4)),
        ("ipv6:%5Bfe80::7%25eth0%5D:1234", ("fe80::7%eth0", 1234, 0, 4)),
    ],
)
def test_grpc_and_the_socket_mean_the_same_peer(name: str, address: Any) -> None:
    assert peer_named(name) == peer_behind(address)


# What is seen and done.


def test_a_look_closes_what_floods_and_leaves_the_rest() -> None:
    closed: list[Closed] = []
    with ExitStack() as held:
        listening = held.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = listening.getsockname()[1]
        ends = [held.enter_context(socket.create_connection(("127.0.0.1", port), 30)) for _ in range(3)]
        accepted = [held.enter_context(listening.accept()[0]) for _ in ends]
        quiet, loud, known = (peer_behind(end.getsockname()) for end in ends)
        ends[1].sendall(bytes(STRANGER_BYTES + 1))
        ends[2].sendall(bytes(STRANGER_BYTES + 1))
        until(lambda: all(bytes_received(end.fileno()) == STRANGER_BYTES + 1 for end in accepted[1:]))
        sessions: dict[Peer, int] = {known: 0}
        guard = FloodGuard(port, lambda: sessions, lambda: WIDE, lambda: False, closed.extend)
        guard.look()
        assert closed == [Closed(loud, STRANGER_BYTES + 1, "flood")]
        assert ends[1].recv(1) == b""
        guard.look()
        ends[0].sendall(b"x")
        assert accepted[0].recv(2) == b"x"
        assert len(closed) == 1
        assert guard._peers.keys() == {accepted[0].fileno(), accepted[2].fileno()}
        assert quiet in guard._marks


def test_a_number_that_belongs_to_somebody_else_by_now_is_not_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), 30) as end, listening.accept()[0] as accepted:
            assert not shut_down(accepted.fileno(), port, ANNA)
            assert not shut_down(accepted.fileno(), port + 1, peer_behind(end.getsockname()))
            assert not shut_down(listening.fileno(), port, ANNA)
            end.sendall(b"x")
            assert accepted.recv(1) == b"x"


def test_a_guard_goes_on_after_a_look_that_failed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(flood_guard, "AFTER_FAILURE", 0.0)
    looks = count(1)

    def sessions() -> dict[Peer, int]:
        if next(looks) <= 3:
            raise OSError(errno.EMFILE, "Too many open files")
        goes_on.set()
        return {}

    goes_on = threading.Event()
    guard = FloodGuard(1, sessions, lambda: WIDE, lambda: False, lambda closed: None)
    with caplog.at_level("ERROR", logger="polytempo"):
        guard.start()
        try:
            assert goes_on.wait(60)
        finally:
            guard.stop()
    assert [record.message for record in caplog.records] == ["flood guard failed"]


def test_a_guard_that_was_not_started_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood_guard.sys, "platform", "darwin")  # which has no /proc
    guard = FloodGuard(1, dict, lambda: WIDE, lambda: False, lambda closed: None)
    guard.start()
    guard.stop()


@pytest.mark.parametrize("becomes_a_file", ["before", "meanwhile"])
def test_the_locks_on_a_file_outlive_an_attempt_to_close_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, becomes_a_file: str
) -> None:
    """A process loses its locks on a file when it closes any descriptor of that file."""
    path = tmp_path / "locked"
    with path.open("wb") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        if becomes_a_file == "meanwhile":
            answers = iter([True])
            checked = flood_guard._is_socket
            monkeypatch.setattr(flood_guard, "_is_socket", lambda fd: next(answers, None) or checked(fd))
        assert not shut_down(file.fileno(), 1, ANNA)
        assert not is_free(path)


def is_free(path: Path) -> bool:
    """Can another process lock it?"""
    lock = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'wb'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    return subprocess.run([sys.executable, "-c", lock, path], capture_output=True, check=False).returncode == 0


# The server under floods.


@pytest.mark.parametrize("security", ["plaintext", "tls"])
def test_headers_that_never_end_are_cut_off_and_others_go_on(tmp_path: Path, security: Any) -> None:
    make_certs(tmp_path, [])
    make_tokens(tmp_path, 2)
    ca = tmp_path / "ca.pem" if security == "tls" else None
    with running(tmp_path, security=security) as server, server.client(0) as before:
        before.wait_for_welcome(30)
        floods = [threading.Thread(target=flood, args=(server.port, ca, 2_000_000)) for _ in range(4)]
        for one in floods:
            one.start()
        others_work(server)
        for one in floods:
            one.join(60)
            assert not one.is_alive()  # it reads until the server closes its connection
        until(lambda: server.shared.meters.refusals["flood"])
        before.run(lambda task: (nudge(task), 5), updates=1)
        assert server.shared.meters.refusals["silent"] == 0


def test_a_connection_that_opens_no_session_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path) as server, server.client(0) as client:
        client.wait_for_welcome(30)
        monkeypatch.setattr(server.server._guard, "_bounds", lambda: Bounds(strangers=100, silent_seconds=0.1))
        with socket.create_connection(("127.0.0.1", server.port), 60) as silent, suppress(ConnectionResetError):
            while silent.recv(4096):  # its settings, and then the end
                pass
        until(lambda: server.shared.meters.refusals["silent"] >= 1)
        client.run(lambda task: (nudge(task), 5), updates=1)


@pytest.mark.parametrize("secure", [False, True], ids=["tcp", "tls"])
def test_of_half_open_connections_only_so_many_are_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    monkeypatch.setattr(server_module, "STRANGERS", 20)
    make_certs(tmp_path, [])
    make_tokens(tmp_path, 2)
    with running(tmp_path, security="tls", limits={"clients": 20}) as server, ExitStack() as held:
        for _ in range(100):
            plain = held.enter_context(socket.create_connection(("127.0.0.1", server.port), 30))
            if secure:
                held.enter_context(secured(plain, tmp_path / "ca.pem"))
        until(lambda: server.shared.meters.refusals["silent"] >= 80)
        others_work(server)


def test_a_small_update_that_does_not_wait_for_the_welcome_is_taken(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with stranger(server.address, server.token(0)) as before:
            before.hello()
            before.say(Head(ready=Ready()))
            task = before.read().task.number
        with stranger(server.address, server.token(0)) as hasty:
            schema = server.host.service.schema
            body = make_body(entries_of(schema), [np.ones(schema.size, np.float32)])
            assert sum(map(len, body)) < STRANGER_BYTES // 2
            hasty.say(Head(hello=Hello(task=task, heeded=task)))
            push = hasty.say(Head(push=Push(task=task, base=task, samples=5, steps=1)), body)
            heard = [hasty.read(), hasty.read()]
        assert [head.WhichOneof("kind") for head in heard] == ["welcome", "accepted"]
        assert heard[1].answers == push
        assert server.shared.meters.refusals["flood"] == 0


def test_all_sessions_may_begin_at_once(tmp_path: Path) -> None:
    many = 300
    with running(tmp_path, clients=many) as server, ExitStack() as held:
        everybody = [held.enter_context(stranger(server.address, server.token(one))) for one in range(many)]
        for one in everybody:
            one.say(Head(hello=Hello()))
        for one in everybody:
            assert one.read().HasField("welcome")
        assert len(server.server._open) == many


def test_as_many_strangers_are_held_as_clients_may_come_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_most_connections", lambda: 10**6)
    with running(tmp_path, limits={"clients": 5000}) as server:
        assert server.server._bounds().strangers == 5000


def test_a_server_that_may_open_too_few_files_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server_module, "_most_connections", lambda: 768)
    with caplog.at_level("WARNING", logger="polytempo"), running(tmp_path):
        pass
    assert "few files" in [record.message for record in caplog.records]
