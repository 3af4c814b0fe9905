"""The operators' page: who comes in, what is told and what is done."""

import asyncio
import io
import json
import logging
import threading

import pytest

from polytempo.serve.access.roster import Operator
from polytempo.serve.access.tokens import make_operator, make_tokens
from polytempo.serve.addresses import peer_of
from polytempo.serve.operators import login_throttle
from polytempo.serve.operators.login_throttle import LoginThrottle
from polytempo.serve.process.options import Endpoints, ServeOptions
from polytempo.serve.process.running import serve
from polytempo_client.client import Client
from polytempo_client.logs import log_to
from polytempo_client.session.credentials import read_token
from support.operating import TOKENS, a_client, a_status, ask, operators_page
from support.serving import nudge, tiny_settings, until


@pytest.fixture
def logged():
    """What is logged meanwhile."""
    logger, stream = logging.getLogger("polytempo"), io.StringIO()
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
    assert '"event": "operator turned away", "peer": "127.0.0.0/8"' in logged.getvalue()


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
