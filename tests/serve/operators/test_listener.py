"""The operators' listener: how little one can do against it."""

import importlib
import logging
import re
import socket
import ssl
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from polytempo.core.errors import UserError
from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.tls import ServerCertificate
from polytempo.serve.addresses import peer_of
from polytempo.serve.operators import listener as connections
from support.operating import operators_page
from support.serving import until


def test_a_large_body_is_not_read():
    with operators_page() as opened:
        assert opened.ask("/api/codes", method="POST", body=b" " * 5000)[0] == 413


def test_a_slow_client_is_cut_off(monkeypatch):
    monkeypatch.setattr(connections, "SILENCE", 1.0)
    with (
        operators_page() as opened,
        socket.create_connection(("127.0.0.1", opened.port), timeout=20) as slow,
    ):
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert slow.recv(100) == b""  # the end, not a timeout
        monkeypatch.undo()
        assert opened.ask("/healthz")[0] == 200


def test_one_peer_cannot_take_all_connections(monkeypatch):
    monkeypatch.setattr(connections, "STRANGERS_OF_PEER", 3)
    with operators_page() as opened, ExitStack() as held:
        silent = [held.enter_context(silent_connection(opened.port)) for _ in range(4)]
        assert silent[0].recv(100) == b""  # the oldest made room for the last
        until(lambda: opened.admin._listener.turned_away == 1)
        assert len(opened.admin._listener._strangers) == 3


def test_places_are_free_again_when_a_peer_goes(monkeypatch):
    monkeypatch.setattr(connections, "STRANGERS_OF_PEER", 1)
    with operators_page() as opened:
        for _ in range(5):
            assert opened.ask("/healthz")[0] == 200
            until(lambda: not opened.admin._listener._strangers)
        assert opened.admin._listener.turned_away == 0


def silent_connection(port, source="127.0.0.1"):
    return socket.create_connection(("127.0.0.1", port), timeout=20, source_address=(source, 0))


@pytest.mark.parametrize("secure", [False, True], ids=["plaintext", "tls"])
def test_silent_connections_from_everywhere_keep_no_operator_and_no_health_check_out(tmp_path, monkeypatch, secure):
    monkeypatch.setattr(connections, "SILENCE", 60.0)  # nobody goes by himself
    make_certs(tmp_path, [])
    context = ServerCertificate(tmp_path).web_context() if secure else None
    with operators_page(context=context) as opened, ExitStack() as held:
        for number in range(160):
            held.enter_context(silent_connection(opened.port, f"127.0.0.{1 + number % 4}"))
        trusted = tmp_path / "ca.pem" if secure else None
        assert b"200 OK" in answer_to(opened.port, "/healthz", trusted)
        assert b'"operator": "alice"' in answer_to(opened.port, "/api/status", trusted)


def answer_to(port, path, ca):
    with ExitStack() as held:
        connection = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        if ca is not None:
            trusting = ssl.create_default_context(cafile=ca)
            connection = held.enter_context(trusting.wrap_socket(connection, server_hostname="localhost"))
        headers = "Host: localhost\r\nAccept-Encoding: identity\r\nAuthorization: Bearer alice-token"
        connection.sendall(f"GET {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_crowd_of_one_address_takes_no_place_of_another(monkeypatch):
    monkeypatch.setattr(connections, "STRANGERS", 4)
    monkeypatch.setattr(connections, "peer_of", lambda host: host)
    with operators_page() as opened, ExitStack() as held:
        alone = held.enter_context(silent_connection(opened.port, "127.0.0.9"))
        crowd = [held.enter_context(silent_connection(opened.port)) for _ in range(8)]
        for one in crowd[:5]:
            assert one.recv(100) == b""
        alone.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert alone.recv(100).startswith(b"HTTP/1.1 200")


def test_nobody_takes_the_place_of_an_operator_who_has_signed_in(monkeypatch):
    monkeypatch.setattr(connections, "STRANGERS_OF_PEER", 2)
    may_answer = threading.Event()
    with operators_page() as opened, ThreadPoolExecutor(8) as operators, ExitStack() as held:
        monkeypatch.setattr(opened, "_revoke", lambda _: may_answer.wait(30))
        opened.shut()
        opened.open()
        held.callback(may_answer.set)
        acting = []
        for client in range(3):
            acting.append(operators.submit(opened.ask, f"/api/clients/{client}/revoke", "alice-token", "POST"))
            until(lambda: len(opened.admin._listener._signed_in) == len(acting))
        for _ in range(5):
            held.enter_context(silent_connection(opened.port))
        until(lambda: opened.admin._listener.turned_away >= 3)
        may_answer.set()
        assert [done.result(20)[0] for done in acting] == [200, 200, 200]


def test_who_says_nothing_is_cut_off_long_before_a_slow_request(monkeypatch):
    monkeypatch.setattr(connections, "SILENCE", 0.2)
    with operators_page(lifetime=60.0) as opened, silent_connection(opened.port) as silent:
        assert silent.recv(100) == b""


def test_all_addresses_of_loopback_are_one_peer():
    assert len({peer_of(host) for host in ("127.0.0.1", "127.0.0.4", "127.9.9.9", "::ffff:127.0.0.2")}) == 1
    assert peer_of("192.0.2.7") != peer_of("192.0.2.8")


def test_plaintext_stays_on_loopback():
    with operators_page() as opened, pytest.raises(UserError, match="only loopback"):
        opened.call(opened.admin.start("0.0.0.0:0", None))


def test_a_port_in_use_is_an_error_that_says_so():
    with operators_page() as opened, pytest.raises(UserError, match="Choose another --admin"):
        opened.call(opened.admin.start(f"127.0.0.1:{opened.port}", None))


def test_over_tls_with_a_certificate_that_changes_while_it_runs(tmp_path):
    make_certs(tmp_path, [])
    certificate = ServerCertificate(tmp_path)
    with operators_page(context=certificate.web_context()) as opened:
        shown = [certificate_of(opened, tmp_path)]
        make_certs(tmp_path, [])
        certificate.refresh()
        shown.append(certificate_of(opened, tmp_path))
    assert shown[0] != shown[1]


def certificate_of(opened, directory):
    trusting = ssl.create_default_context(cafile=directory / "ca.pem")
    plain = socket.create_connection(("127.0.0.1", opened.port), timeout=20)
    with trusting.wrap_socket(plain, server_hostname="localhost") as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        return connection.getpeercert(True)


def test_without_the_extra_the_way_to_it_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "polytempo.serve.operators.admin")
    with pytest.raises(UserError, match=re.escape("'.[operate]' in the source of Polytempo")):
        importlib.import_module("polytempo.serve.operators.admin")


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /api/status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice-token\r\r\n\r\n",
        b"GET /api/status HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer alice-token\r\n\x00: y\r\n\r\n",
        b"G\x00T / HTTP/1.1\r\nAuthorization: Bearer alice-token\r\n\r\n",
    ],
)
def test_a_malformed_request_leaves_no_token_in_any_log(request_, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    with operators_page() as opened, socket.create_connection(("127.0.0.1", opened.port), 20) as connection:
        connection.sendall(request_)
        answer = connection.recv(65536)
    assert b"200 OK" not in answer
    told = [record for record in caplog.records if record.name.startswith("aiohttp")]
    assert told == []
    assert "alice-token" not in caplog.text + "".join(capfd.readouterr())


def test_whoever_sends_more_than_a_request_has_is_cut_off():
    with operators_page() as opened, socket.create_connection(("127.0.0.1", opened.port), 20) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall((b"X-Much: " + b"x" * 4000 + b"\r\n") * 10_000)
        assert opened.ask("/healthz", None)[0] == 200
