"""The operators' listener: how little one can do against it."""

import http.client
import importlib
import logging
import re
import socket
import ssl
import sys
from contextlib import ExitStack

import pytest

from polytempo.core.errors import UserError
from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.tls import ServerCertificate
from polytempo.serve.operators import listener as connections
from support.operating import operators_page


def test_a_large_body_is_not_read():
    with operators_page() as opened:
        assert opened.ask("/api/codes", method="POST", body=b" " * 5000)[0] == 413


def test_a_slow_client_is_cut_off():
    with (
        operators_page(lifetime=1.0) as opened,
        socket.create_connection(("127.0.0.1", opened.port), timeout=20) as slow,
    ):
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert slow.recv(100) == b""  # the end, not a timeout
        opened.admin._listener._lifetime = connections.LIFETIME
        assert opened.ask("/healthz")[0] == 200


def test_one_peer_cannot_take_all_connections(monkeypatch):
    monkeypatch.setattr(connections, "CONNECTIONS_OF_PEER", 3)
    with operators_page() as opened, ExitStack() as held:
        for _ in range(3):
            connection = socket.create_connection(("127.0.0.1", opened.port), timeout=20)
            held.enter_context(connection)
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            opened.ask("/healthz")


def test_places_are_free_again_when_a_peer_goes(monkeypatch):
    monkeypatch.setattr(connections, "CONNECTIONS_OF_PEER", 1)
    with operators_page() as opened:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", opened.port), timeout=20) as connection:
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                while connection.recv(1000):
                    pass


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
