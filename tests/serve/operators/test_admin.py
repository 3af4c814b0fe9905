"""The operators' page: who comes in, what is told, what is done, and how little one can do against it."""

import asyncio
import http.client
import importlib
import io
import json
import logging
import re
import socket
import ssl
import sys
import threading
from contextlib import ExitStack

import pytest
from prometheus_client.parser import text_string_to_metric_families

from polytempo.core.errors import UserError
from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.credentials import read_token
from polytempo.serve.access.roster import Operator
from polytempo.serve.access.tls import ServerCertificate
from polytempo.serve.access.tokens import make_operator, make_tokens
from polytempo.serve.addresses import peer_of
from polytempo.serve.client.client import Client
from polytempo.serve.logs import log_to
from polytempo.serve.operators import listener as connections
from polytempo.serve.operators import login_throttle
from polytempo.serve.operators.login_throttle import LoginThrottle
from polytempo.serve.operators.metrics import exposition
from polytempo.serve.process.options import Endpoints, ServeOptions
from polytempo.serve.process.running import serve
from support import ROOT
from support.operating import TOKENS, a_client, a_status, ask, operators_page
from support.serving import nudge, tiny_settings, until


@pytest.fixture
def logged():
    """What is logged meanwhile."""
    logger, stream = logging.getLogger("polytempo.serve"), io.StringIO()
    before = logger.handlers, logger.level, logger.propagate
    log_to(stream, "debug")
    yield stream
    logger.handlers, logger.level, logger.propagate = before


@pytest.fixture(autouse=True)
def _wrong_tokens_are_answered_at_once(monkeypatch):
    monkeypatch.setattr(login_throttle, "FIRST_WAIT", 0.0)


# Who comes in.


@pytest.mark.parametrize("path", ["/api/status", "/metrics", "/api/nothing", "/etc/passwd", "/../admin.py"])
@pytest.mark.parametrize("token", [None, "", "wrong", "alice-token x", "ALICE-TOKEN"])
def test_without_an_operators_token_nothing_is_told(path, token):
    with operators_page() as opened:
        status, headers, body = opened.ask(path, token)
    assert (status, headers["WWW-Authenticate"], json.loads(body)) == (
        401,
        "Bearer",
        {"error": "No operator has this token."},
    )


@pytest.mark.parametrize("path", ["/", "/app.js", "/style.css", "/icon.svg", "/healthz"])
def test_the_empty_page_and_health_need_no_token_and_hold_no_data(path):
    with operators_page(a_status(clients=1, refusals={"a-telling-word": 3})) as opened:
        status, _, body = opened.ask(path, None)
    assert status == 200
    assert "a-telling-word" not in body


def test_health_follows_the_host():
    with operators_page() as opened:
        opened.healthy = False
        assert opened.ask("/healthz", None)[0] == 503


def test_viewers_look_and_do_not_act():
    with operators_page() as opened:
        assert json.loads(opened.ask("/api/status", "bob-token")[2])["role"] == "viewer"
        for path in ("/api/clients/1/revoke", "/api/clients/1/release", "/api/codes", "/api/reload"):
            assert opened.ask(path, "bob-token", "POST", {"client": 1})[0] == 403
        assert opened.acted == []


@pytest.mark.parametrize("path", ["/api/clients/1/revoke", "/api/codes", "/api/reload"])
def test_looking_does_not_act(path):
    with operators_page() as opened:
        assert opened.ask(path, method="GET")[0] == 405
        assert opened.acted == []


def test_wrong_tokens_are_answered_ever_later_and_a_right_one_at_once(monkeypatch):
    monkeypatch.setattr(login_throttle, "FIRST_WAIT", 0.25)
    waited, now = [], [0.0]

    async def wait(seconds):
        waited.append(seconds)

    checked = LoginThrottle(TOKENS.get, wait, lambda: now[0])

    def come(token, peer="192.0.2.1"):
        with pytest.raises(StopIteration) as done:
            checked.authenticate(f"Bearer {token}", peer).send(None)
        return done.value.value

    for _ in range(7):
        assert come("wrong") is None
    assert waited == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0]
    assert come("alice-token") == Operator("alice", "admin")
    assert come("wrong", "192.0.2.2") is None
    now[0] = 301.0
    come("wrong")
    assert waited[7:] == [0.25, 0.25]


def test_a_peer_is_an_address_or_the_network_of_one_subscriber():
    assert peer_of("192.0.2.7") == "192.0.2.7" == peer_of("::ffff:192.0.2.7")
    assert peer_of("2001:db8:1:2::7") == peer_of("2001:db8:1:2:ffff::1") != peer_of("2001:db8:1:3::7")


def test_no_secret_is_answered_or_logged(logged):
    with operators_page() as opened:
        answers = [
            opened.ask(path, token)[2] for path in ("/api/status", "/metrics", "/") for token in (*TOKENS, "sesame")
        ]
        code = opened.ask("/api/codes", method="POST", body={"client": 5, "hours": 2})
    said = "".join(answers) + logged.getvalue()
    assert "a-one-time-code" in code[2]
    assert not [secret for secret in (*TOKENS, "sesame", "a-one-time-code") if secret in said]
    assert '"operator": "alice"' in logged.getvalue()
    assert '"event": "operator turned away", "peer": "127.0.0.1"' in logged.getvalue()


# What is told.


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/status", "/metrics", "/nothing"])
def test_every_answer_has_strict_headers_and_no_cookie(path):
    with operators_page() as opened:
        _, headers, _ = opened.ask(path)
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff")
    assert "Set-Cookie" not in headers
    assert headers["Server"] == "polytempo"


def test_the_page_brings_everything_along_and_nothing_inline():
    with operators_page() as opened:
        page = opened.ask("/", None)[2]
        scripts = [opened.ask(path, None)[2] for path in opened.admin._public if path.endswith(".js")]
    assert "http" not in page.replace("<!doctype html>", "")
    assert "style=" not in page
    assert "onclick" not in page
    assert len(scripts) > 5
    assert not [script for script in scripts if "innerHTML" in script or "insertAdjacentHTML" in script]


def test_the_status_is_plain_json_whatever_clients_report():
    with operators_page(a_status([a_client(0, accuracy=float("nan"), loss=float("inf"))])) as opened:
        said = json.loads(opened.ask("/api/status")[2], parse_constant=pytest.fail)
    assert said["status"]["clients"][0]["accuracy"] is None


def metrics_of(said, answers=None):
    families = text_string_to_metric_families(exposition(said, answers or {}).decode())
    return {(sample.name, *sample.labels.values()): sample.value for family in families for sample in family.samples}


def test_the_metrics_are_what_prometheus_reads():
    rows = [a_client(0, accuracy=0.5, staleness=4), a_client(1, accuracy=0.9, staleness=0), a_client(2, doing="away")]
    rows[2] |= {"connected": False, "quarantined": "rubbish", "accuracy": None, "staleness": 1}
    found = metrics_of(a_status(rows, branches={"model": 43}), {"401": 6})
    assert found[("polytempo_updates_total",)] == 1234
    assert found[("polytempo_refusals_total", "push")] == 5
    assert found[("polytempo_clients", "training")] == 2
    assert found[("polytempo_clients", "ready")] == 0
    assert found[("polytempo_connected",)] == 2
    assert found[("polytempo_quarantined",)] == 1
    assert found[("polytempo_branch_version", "model")] == 43
    assert found[("polytempo_staleness", "0.5")] == 1
    assert found[("polytempo_staleness", "1.0")] == 4
    assert found[("polytempo_reported_accuracy", "mean")] == pytest.approx(0.7)
    assert found[("polytempo_journal_bytes",)] == 12_345_678
    assert found[("polytempo_request_seconds_bucket", "0.1")] == 99
    assert found[("polytempo_request_seconds_count",)] == 100
    assert found[("polytempo_admin_answers_total", "401")] == 6


def test_metrics_of_a_service_that_has_said_little_are_few_and_valid():
    assert metrics_of({})[("polytempo_connected",)] == 0
    assert ("polytempo_updates_total",) not in metrics_of({})


def test_the_number_of_series_does_not_grow_with_the_clients():
    def some(clients):
        rows = [a_client(i, cluster=i, staleness=i) for i in range(clients)]
        return len(metrics_of(a_status(rows, branches={f"own.{i}": i for i in range(clients)})))

    assert some(100) == some(2000)


def test_a_label_cannot_break_out():
    hostile = 'a"} 1\npolytempo_updates_total 666 #'
    found = metrics_of(a_status(refusals={hostile: 1}))
    assert found[("polytempo_refusals_total", hostile)] == 1
    assert found[("polytempo_updates_total",)] == 1234


def test_the_docs_list_every_metric_and_the_alerts_use_no_other():
    offered = {family.name for family in text_string_to_metric_families(exposition(a_status(), {"200": 1}).decode())}
    named = {
        name.removesuffix("_total") for name in re.findall(r"`(polytempo_\w+)", text_of("docs/service/dashboard.md"))
    }
    used = re.findall(
        r"polytempo_\w+", "".join(re.findall(r"expr: (.*?)\n +(?:for|labels):", text_of("deploy/alerts.yml"), re.S))
    )
    assert named == offered
    assert len(used) > 5
    assert {re.sub("_(total|bucket)$", "", name) for name in used} <= offered


def test_the_docs_explain_every_alert():
    alerts = re.findall(r"alert: (\w+)", text_of("deploy/alerts.yml"))
    assert [name for name in alerts if f"`{name}`" not in text_of("docs/service/dashboard.md")] == []


def text_of(path):
    return (ROOT / path).read_text()


# What is done.


def test_admins_revoke_release_make_codes_and_reload(logged):
    with operators_page() as opened:
        assert opened.ask("/api/clients/3/revoke", method="POST")[0] == 200
        assert opened.ask("/api/clients/4/release", method="POST")[0] == 200
        code = json.loads(opened.ask("/api/codes", method="POST", body={"client": 5, "hours": 2})[2])
        assert opened.ask("/api/reload", method="POST")[0] == 200
        assert opened.acted == [("revoke", 3), ("release", 4), ("code", 5, 2.0, None), ("reload",)]
    assert code["code"] == "a-one-time-code"
    acts = [json.loads(line) for line in logged.getvalue().splitlines()]
    assert [act["action"] for act in acts if act["event"] == "operator acted"] == [
        "revoke",
        "release",
        "code",
        "reload",
    ]


def test_what_cannot_be_done_is_said_in_plain_words():
    with operators_page() as opened:
        status, _, body = opened.ask("/api/clients/99/revoke", method="POST")
    assert (status, json.loads(body)["error"]) == (400, "Client 99 has no token: there is nothing to revoke.")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"client": "3"}',
        b'{"client": true}',
        b'{"client": 3, "hours": "x"}',
        b'{"client": 3, "days": "x"}',
        b'{"client": 3, "valid": 3}',
        b'{"client": 3, "hours": 1%s}' % (b"0" * 400),
        b"[" * 3000,
    ],
)
def test_a_malformed_wish_for_a_code_is_refused_with_an_example(body):
    with operators_page() as opened:
        status, _, answer = opened.ask("/api/codes", method="POST", body=body)
        assert opened.acted == []
    assert status == 400
    assert '{"client": 3, "hours": 24, "days": 90}' in json.loads(answer)["error"]


@pytest.mark.parametrize("client", ["x", "-1", "1" * 10, "1.5", "%00"])
def test_only_numbers_are_clients(client):
    with operators_page() as opened:
        assert opened.ask(f"/api/clients/{client}/revoke", method="POST")[0] == 404
        assert opened.acted == []


def test_an_action_that_fails_tells_its_log_and_no_stranger(logged, monkeypatch):
    with operators_page() as opened:
        monkeypatch.setattr(opened, "acted", None)
        status, _, body = opened.ask("/api/clients/3/revoke", method="POST")
        assert opened.ask("/healthz")[0] == 200
    assert status == 500
    assert "NoneType" not in body
    assert "NoneType" in logged.getvalue()


# How little one can do against it.


def test_a_large_body_is_not_read():
    with operators_page() as opened:
        assert opened.ask("/api/codes", method="POST", body=b" " * 5000)[0] == 413


def test_a_slow_client_is_cut_off():
    with (
        operators_page(lifetime=0.2) as opened,
        socket.create_connection(("127.0.0.1", opened.port), timeout=20) as slow,
    ):
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        assert slow.recv(100) == b""  # the end, not a timeout
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


# The page of a real service.


def test_an_admin_sees_a_client_at_work_and_throws_it_out(tmp_path, logged):
    make_tokens(tmp_path, 1)
    token = read_token(make_operator(tmp_path, "carol", "admin"))

    def said():
        return json.loads(ask(port, "/api/status", token)[2])["status"]

    loop, stop, listening = asyncio.new_event_loop(), asyncio.Event(), []
    endpoints = Endpoints("127.0.0.1:0", insecure=True, admin="127.0.0.1:0")
    options = ServeOptions(tmp_path, tiny_settings(tmp_path), endpoints, log_level="error")
    served = serve(options, stop, asyncio.Event(), listening.append)
    thread = threading.Thread(target=lambda: loop.run_until_complete(served))
    thread.start()
    try:
        until(lambda: listening)
        port = int(listening[0].admin.rpartition(":")[2])
        with Client(listening[0].address, read_token(tmp_path / "client-0.token"), insecure=True) as client:
            task = client.task()
            client.push(task, nudge(task), samples=10)
            until(lambda: said().get("updates") == 1)
            assert ask(port, "/api/status", read_token(tmp_path / "client-0.token"))[0] == 401
            assert ask(port, "/api/clients/0/revoke", token, "POST")[0] == 200
            until(lambda: not said()["clients"][0]["connected"])
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


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
