"""``serve`` and ``join`` on the command line, as somebody who sets up a federation uses them."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from polytempo.cli.main import app
from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.roster import Quarantine, changing, utc_now
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal.opening import open_service
from support import Call
from support.serving import running, tiny_settings


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    """Everything that ``serve`` needs."""
    make_certs(tmp_path / "federation", [])
    make_tokens(tmp_path / "federation", 2)
    return tmp_path / "federation"


# What is wrong with a server


def test_a_server_without_certificates_says_how_to_make_them(polytempo: Call) -> None:
    code, _, err = polytempo("serve", "fedasync", "--dir", "here")
    assert code == 2
    assert "polytempo certs here" in err
    assert not Path("here").exists()


def test_options_of_tokens_that_belong_to_others_are_refused_alone(polytempo: Call) -> None:
    for given, needed in ((["--days", 3], "--clients N or --operator NAME"), (["--role", "admin"], "--operator NAME")):
        code, _, err = polytempo("tokens", "here", *given)
        assert code == 2
        assert needed in err


def test_an_operator_keeps_its_role_with_a_new_token(polytempo: Call) -> None:
    _, out, _ = polytempo("tokens", "here", "--operator", "anna", "--role", "admin")
    assert out.endswith("a token to log in as admin\n")
    _, out, _ = polytempo("tokens", "here", "--operator", "anna")
    assert "a token to log in as admin; one that anna had before counts no more" in out


def test_a_code_for_a_client_in_quarantine_comes_with_a_hint_and_the_list_shows_it(polytempo: Call) -> None:
    polytempo("tokens", "here", "--clients", 1)
    with changing(Path("here")) as known:
        known["quarantined"][5] = Quarantine(since=utc_now(), reason="it sent rubbish")
    assert "polytempo release here 5" in polytempo("codes", "here", 5)[1]
    assert "rubbish" in polytempo("tokens", "here")[1]


def test_a_server_without_tokens_says_how_to_make_them(polytempo: Call) -> None:
    polytempo("certs", "here")
    code, _, err = polytempo("serve", "fedasync", "--dir", "here")
    assert code == 2
    assert "polytempo tokens here --clients N" in err


@pytest.mark.parametrize("address", ["0.0.0.0:7733", "192.168.1.5:7733", "[::]:7733", "example.org:7733"])
def test_plaintext_stays_on_the_machine(polytempo: Call, federation: Path, address: str) -> None:
    for command in (("serve", "fedasync"), ("join", address, "--token", federation / "client-0.token")):
        listen = ("--listen", address) if command[0] == "serve" else ()
        code, _, err = polytempo(*command, *listen, "--insecure")
        assert code == 2
        assert f"only loopback is allowed (127.0.0.1, ::1, localhost), not {address}" in err
    assert not (federation / "journal").exists()


def test_a_directory_with_another_service_is_not_touched(polytempo: Call, federation: Path) -> None:
    open_service(federation / "journal", tiny_settings(federation)).journal.close()
    code, _, err = polytempo("serve", "fedbuff")
    assert code == 2
    assert "holds another service (strategy is 'fedasync' there, 'fedbuff' here)" in err


def test_a_port_that_is_taken_is_an_error_and_the_journal_is_let_go(polytempo: Call, federation: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        serve = ("serve", "fedasync", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
        for written_out in ((), ("--lr", "0.05", "--momentum", "0")):  # the defaults: the same service
            code, out, err = polytempo(*serve, *written_out)
            assert (code, out) == (75, "")  # it may be free later
            assert "Cannot listen on 127.0.0.1" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedasink"], "Did you mean 'fedasync'?"),
        (["fedasync", "--set", "mixin=0.3"], "Did you mean 'mixing'?"),
        (["fedasync", "--set", "mixing=7"], "mixing"),
        (["fedasync", "--lr", "quick"], "Learning rate 'quick'"),
        (["fedasync", "--model", "mpl"], "Did you mean 'mlp'?"),
        (["fedasync", "--listen", "localhost"], "'localhost' is no address. Expected HOST:PORT"),
        (["fedasync", "--listen", "localhost:70000"], "Expected HOST:PORT"),
        (["fedasync", "--log-level", "loud"], "loud"),
    ],
)
def test_a_server_that_cannot_be_says_why(polytempo: Call, federation: Path, arguments: list[str], said: str) -> None:
    code, out, err = polytempo("serve", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert not (federation / "journal").exists()


# What is wrong with a client


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["localhost", "--insecure"], "'localhost' is no address. Expected HOST:PORT"),
        (["http://localhost:1", "--insecure"], "Expected HOST:PORT"),
        (["localhost:1"], "Give --ca"),
        (["--insecure"], "HOST:PORT, or --servers with several"),
        (["localhost:1", "--servers", "localhost:2", "--insecure"], "HOST:PORT, or --servers with several"),
        (["--servers", "localhost:1,localhost", "--insecure"], "'localhost' is no address"),
        (["localhost:1", "--ca", "nowhere.pem"], "There is no nowhere.pem"),
        (["localhost:1", "--insecure", "--data", "digit"], "Did you mean 'digits'?"),
        (["localhost:1", "--insecure", "--clients", "3"], "clients belongs to partition"),
        (["localhost:1", "--insecure", "--engine", "quick"], "Unknown engine 'quick'"),
    ],
)
def test_a_client_that_cannot_be_says_why(polytempo: Call, federation: Path, arguments: list[str], said: str) -> None:
    code, _, err = polytempo("join", *arguments, "--token", federation / "client-0.token")
    assert code == 2
    assert said in err


def test_a_token_file_that_cannot_be_read_is_an_error(polytempo: Call, federation: Path) -> None:
    (federation / "empty.token").write_text("")
    for name, said in (("client-9.token", "Cannot read the token"), ("empty.token", "holds no token")):
        code, _, err = polytempo("join", "localhost:1", "--insecure", "--token", federation / name)
        assert code == 2
        assert said in err


def test_a_client_joins_in_plaintext_and_logs_what_it_trains(polytempo: Call, tmp_path: Path) -> None:
    with running(tmp_path, init=None, seed=5) as server:
        arguments = ("join", f"127.0.0.1:{server.port}", "--insecure", "--engine", "eager")
        code, out, err = polytempo(*arguments, "--token", tmp_path / "client-1.token", "--updates", 2)
        assert (code, out) == (0, "")
        lines = [json.loads(line) for line in err.splitlines()]
        trained = [line for line in lines if line["event"] == "trained"]
        assert [(line["version"], line["steps"]) for line in trained] == [(0, 4), (1, 4)]
        assert not server.host.service.is_member(1)

        (tmp_path / "stranger.token").write_text("nobody\n")
        code, _, err = polytempo(*arguments, "--token", tmp_path / "stranger.token")
        assert code == 2
        assert "no client has this token" in err


def test_a_client_joins_the_one_of_several_servers_that_is_there(polytempo: Call, tmp_path: Path) -> None:
    with running(tmp_path, init=None) as server:
        arguments = ("join", "--servers", f"127.0.0.1:1,{server.address}", "--insecure", "--engine", "eager")
        code, _, _ = polytempo(*arguments, "--token", tmp_path / "client-1.token", "--updates", 1)
        assert (code, server.host.service.members[1].updates) == (0, 1)


def test_a_client_that_asks_when_it_wants_logs_why_and_what_came_back(polytempo: Call, tmp_path: Path) -> None:
    with running(tmp_path, init=None) as server:
        arguments = ("join", f"127.0.0.1:{server.port}", "--insecure", "--engine", "eager", "--updates", 2)
        mixed = ("--partition", "rotations:2", "--clients", 3, "--drift-every", 1, "--proxies", 5)
        own = ("--token", tmp_path / "client-1.token", "--ask", "every:0.001", "--keep", tmp_path / "task")
        code, _, err = polytempo(*arguments, *mixed, *own)
        events = [json.loads(line)["event"] for line in err.splitlines()]
        said = [event for event in events if event in ("asks", "trained", "exchange")]
        assert (code, said) == (0, ["asks", "trained", "exchange"] * 2)
        assert server.host.service.is_member(1)
        assert (tmp_path / "task").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_client_that_is_stopped_leaves_the_federation_and_that_is_a_good_end(
    polytempo: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(
        "polytempo.serve.client.join.log", lambda *_, **__: signal.raise_signal(number)
    )  # when it has trained
    with running(tmp_path, init=None) as server:
        arguments = ("join", f"127.0.0.1:{server.port}", "--insecure", "--engine", "eager")
        code, _, err = polytempo(*arguments, "--token", tmp_path / "client-1.token")
        assert code == 0
        assert "polytempo: stopped." in err
        assert not server.host.service.is_member(1)


# All of it


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start the command line as a process; its stderr goes to a file."""
    started: list[subprocess.Popen[str]] = []

    def begin(log: Path, *arguments: object) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", "from polytempo.cli.main import main; main()", *map(str, arguments)]
        with log.open("w") as stderr:
            started.append(subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=stderr))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_a_server_and_its_clients_work_over_tls_stop_at_a_signal_and_go_on(
    polytempo: Call, start: Callable[..., "subprocess.Popen[str]"], tmp_path: Path, federation: Path
) -> None:
    serve = ("serve", "fedasync", "--listen", "127.0.0.1:0")
    server = start(tmp_path / "serve.log", *serve)
    assert server.stdout is not None
    line = server.stdout.readline()
    address = line.split()[2]
    assert line == f"fedasync on {address} (TLS), 7,510 parameters: begins anew\n"

    join = ("join", address, "--engine", "eager", "--ca", federation / "ca.pem")
    code, _, err = polytempo(*join, "--token", federation / "client-0.token", "--updates", 3)
    assert (code, err.count('"trained"')) == (0, 3)
    four_updates = start(tmp_path / "join.log", *join, "--token", federation / "client-1.token", "--updates", 4)
    assert four_updates.wait(60) == 0

    make_certs(tmp_path / "other", [])
    code, _, err = polytempo(
        "join", address, "--ca", tmp_path / "other/ca.pem", "--token", federation / "client-0.token"
    )
    assert code == 2
    assert "did not sign the server's certificate" in err

    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0
    events = [json.loads(line) for line in (tmp_path / "serve.log").read_text().splitlines()]
    assert [event["client"] for event in events if event["event"] == "updated"] == 3 * [0] + 4 * [1]
    assert [event["client"] for event in events if event["event"] == "left"] == [0, 1]
    last = next(event["number"] for event in events if event["event"] == "snapshot")

    again = start(tmp_path / "again.log", *serve)
    assert again.stdout is not None
    assert again.stdout.readline().endswith(f"goes on from event {last:,}\n")
    again.send_signal(signal.SIGINT)
    assert again.wait(60) == 0


@pytest.mark.parametrize(
    ("command", "switch"), [("run", "personal"), ("serve", "personal"), ("join", "shadow"), ("join", "new_ledger")]
)
def test_a_switch_takes_no_value(command: str, switch: str) -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    (found,) = [option for option in commands[command].params if option.name == switch]
    assert found.is_flag
    assert found.secondary_opts == []
