"""What may change while a service runs: service.toml, read when it starts and again when it is told to."""

import logging
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from polytempo.core.errors import UserError
from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.enrolment import make_code
from polytempo.serve.access.roster import utc_now
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.paths import OPERATIONS
from polytempo.serve.process.options import Endpoints
from polytempo.serve.server.operations import Operations, WatchdogRule, read_operations
from polytempo_client.client import Client
from polytempo_client.errors import RefusedError
from polytempo_client.session import search as search_module
from polytempo_client.session.enrolment import enrol_client
from support.processes import Processes
from support.serving import nudge, until
from support.whole_service import LOG, Service, whole


@pytest.fixture(autouse=True)
def _clean_logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(search_module, "FIRST_PAUSE", 0.01)
    yield
    logger = logging.getLogger("polytempo")
    for handler in logger.handlers:
        handler.close()
    logger.handlers, logger.propagate = [], True


# The file.


@pytest.mark.parametrize(("event", "stop", "frozen"), [(60.0, 300.0, 120.0), (600.0, 300.0, 300.0)])
def test_a_process_that_is_frozen_ends_within_the_time_for_a_stop(event: float, stop: float, frozen: float) -> None:
    assert WatchdogRule(event_seconds=event, stop_seconds=stop).frozen_seconds == frozen


@pytest.mark.parametrize("line", ["event_seconds = 0.5", "stop_seconds = 1.0"])
def test_a_time_in_which_a_healthy_process_may_not_run_is_refused(line: str, tmp_path: Path) -> None:
    (tmp_path / OPERATIONS).write_text(f"[watchdog]\n{line}\n")
    with pytest.raises(UserError, match=rf"watchdog\.{line.split()[0]}.*greater than or equal to"):
        read_operations(tmp_path / OPERATIONS)


def test_without_a_file_everything_has_its_default(tmp_path: Path) -> None:
    assert read_operations(tmp_path / OPERATIONS) == Operations()


def test_what_the_file_says_counts_and_the_rest_has_its_default(tmp_path: Path) -> None:
    (tmp_path / OPERATIONS).write_text(
        'norm_bound = 2\nencodings = ["fp16"]\n'
        '[limits]\nsessions = 7\n[quarantine]\nseconds = 1.5\n[log]\nfile = "a.log"'
    )
    said = read_operations(tmp_path / OPERATIONS)
    assert (said.norm_bound, said.encodings, said.limits.sessions) == (2.0, ("fp16",), 7)
    assert (said.quarantine.seconds, said.quarantine.refusals) == (1.5, Operations().quarantine.refusals)
    assert (said.log.file, said.patience) == (Path("a.log"), Operations().patience)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("norm_bound = 0", "norm_bound"),
        ("norm_bound = nan", "norm_bound"),
        ("patience = -1", "patience"),
        ("patience = inf", "patience"),
        ('patience = "long"', "patience"),
        ("patiance = 5", r"'patiance'\. Did you mean 'patience'\?"),
        ("[watchdog]\nevent_second = 5", r"'event_second'\. Did you .*\? Known: event_seconds, stop_seconds\.$"),
        ('encodings = ["zip"]', "encodings"),
        ("limits = 5", "limits"),
        ("[limits]\nclients = 0", r"limits\.clients"),
        ("[limits]\nmessage_bytes = 10", r"limits\.message_bytes"),
        ("[limits]\nmemory_bytes = 10", r"limits\.memory_bytes"),
        ("[limits]\nrequests_per_second = 0", r"limits\.requests_per_second"),
        ("[limits]\nsesions = 5", "key of limits 'sesions'"),
        ("[quarantine]\nrefusals = 0", r"quarantine\.refusals"),
        ("[log]\nkept = 0", r"log\.kept"),
        ("[limits", "no valid TOML"),
        ("\xff", "no valid TOML"),
    ],
)
def test_what_is_wrong_is_refused_with_its_key(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / OPERATIONS).write_text(text, "latin-1")
    with pytest.raises(UserError, match=named):
        read_operations(tmp_path / OPERATIONS)


# A service that runs.


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    make_tokens(tmp_path, 3)
    with whole(tmp_path) as started:
        yield started


def test_a_new_bound_counts_for_the_next_update_of_a_session_that_goes_on(service: Service) -> None:
    with service.client(0) as client:
        client.run(lambda task: (nudge(task, 1.0), 5), updates=1)
        service.reload(f"norm_bound = 0.01\nzero_bound = 0.01\n{LOG}")
        task = client.task(30)
        with pytest.raises(RefusedError, match="its distance from the start"):
            client.push(task, nudge(task, 1.0), samples=5, timeout=30)
        client.push(task, nudge(task, 0.001), samples=5, timeout=30)
    assert len(service.logged("connected")) == 1


def test_a_new_patience_counts_for_who_goes_from_now_on(service: Service) -> None:
    service.reload(f"patience = 0.05\n{LOG}")
    with service.client(0) as client:
        client.task(30)
    until(lambda: service.logged("expired"))


def test_new_limits_count_for_who_comes_and_nobody_who_is_there_is_dropped(service: Service) -> None:
    with service.client(0) as first, service.client(1) as second:
        first.task(30)
        second.task(30)
        service.reload(f"[limits]\nsessions = 1\n{LOG}")
        with service.client(2) as third:
            first.run(lambda task: (nudge(task), 5), updates=1)
            second.run(lambda task: (nudge(task), 5), updates=1)
            assert third.number is None
            service.reload(f"[limits]\nsessions = 3\n{LOG}")
            assert third.wait_for_welcome(30)[0] == 2
    assert sorted(row["client"] for row in service.logged("connected")) == [0, 1, 2]


@pytest.mark.parametrize(
    ("broken", "named"),
    [("norm_bound = -1", "norm_bound"), ("[limits", "TOML"), ('[log]\nfile = "/dev/null/x"', "logs")],
)
def test_a_broken_file_changes_nothing_and_the_log_says_what_is_wrong(
    service: Service, broken: str, named: str
) -> None:
    service.reload(f"norm_bound = 0.01\nzero_bound = 0.01\n{LOG}")
    with service.client(0) as client:
        service.reload(broken, event="not reloaded")
        assert named in service.logged("not reloaded")[0]["reason"]
        task = client.task(30)
        with pytest.raises(RefusedError, match="its distance from the start"):
            client.push(task, nudge(task, 1.0), samples=5, timeout=30)
        service.reload(LOG)
        client.push(task, nudge(task, 1.0), samples=5, timeout=30)


def test_the_log_moves_to_another_file_and_back_to_stderr(service: Service, capsys: pytest.CaptureFixture[str]) -> None:
    service.reload('[log]\nfile = "other.log"', "other.log")
    before = (service.directory / "service.log").read_text()
    (service.directory / OPERATIONS).write_text("")
    service.read_again()
    heard: list[str] = []
    until(lambda: heard.append(capsys.readouterr().err) or '"reloaded"' in "".join(heard))
    with service.client(0) as client:
        client.wait_for_welcome(30)
    until(lambda: heard.append(capsys.readouterr().err) or '"disconnected"' in "".join(heard))
    assert (service.directory / "service.log").read_text() == before
    assert not service.logged("connected", "other.log")


def test_a_log_that_moves_says_where_and_not_to_where_nothing_is(service: Service) -> None:
    (service.directory / OPERATIONS).write_text('[log]\nfile = "nowhere/other.log"')
    service.read_again()
    until(lambda: service.logged("not reloaded"))
    assert "in a directory that exists" in service.logged("not reloaded")[0]["reason"]
    assert not (service.directory / "nowhere").exists()
    service.reload('[log]\nfile = "other.log"', "other.log")
    (told,) = service.logged("log goes elsewhere")
    assert told["to"].endswith("/other.log")


def test_a_reload_says_what_has_changed(service: Service) -> None:
    service.reload(f"patience = 5\n{LOG}")
    service.reload(f"patience = 5\n[quarantine]\nrefusals = 7\n{LOG}")
    first, second = service.logged("reloaded")
    assert first["patience"] == 5
    assert second["quarantine"] == {"refusals": 7, "seconds": 600.0}
    assert "patience" not in second


def test_starts_and_stops_are_told_by_name(tmp_path: Path) -> None:
    make_tokens(tmp_path, 1)
    for _ in range(2):
        with whole(tmp_path) as service, service.client(0) as client:
            client.wait_for_welcome(30)
    assert [row["number"] for row in service.logged("started")] == [0, 1]
    assert all(row["version"] and row["address"] for row in service.logged("started"))
    assert [row["number"] for row in service.logged("stopped")] == [1, 1]


def test_a_start_without_mtls_where_it_was_on_is_told(tmp_path: Path) -> None:
    make_tokens(tmp_path, 1)
    make_certs(tmp_path, [])
    for endpoints in (Endpoints("127.0.0.1:0", mutual=True), Endpoints("127.0.0.1:0"), Endpoints("127.0.0.1:0")):
        with whole(tmp_path, endpoints):
            pass
        service_log = (tmp_path / "service.log").read_text()
        assert service_log.count("no certificates asked for") == (not endpoints.mutual)


def test_a_secret_that_others_can_read_is_warned_of(tmp_path: Path) -> None:
    make_tokens(tmp_path, 2)
    (tmp_path / "client-1.token").chmod(0o644)
    with whole(tmp_path) as service:
        (told,) = service.logged("others can read secrets")
    assert told["files"] == ["client-1.token"]


def test_an_enrolment_is_for_no_longer_than_the_server_allows(service: Service) -> None:
    service.reload(f"token_days = 30\n{LOG}")
    for number, days in enumerate((None, 5, 300)):
        code = make_code(service.directory, number, days=days)
        enrolee = enrol_client(service.address, code, service.directory / f"new-{number}.token", insecure=True)
        assert enrolee.expires is not None
        left = (enrolee.expires - utc_now()).total_seconds() / 86400
        assert left == pytest.approx(5 if days == 5 else 30, abs=0.01)


def test_a_supervisor_is_told_that_it_listens_lives_and_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tokens(tmp_path, 1)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with whole(tmp_path):
            assert systemd.recv(100) == b"READY=1"
            assert systemd.recv(100) == b"WATCHDOG=1"
        told = list(iter(lambda: systemd.recv(100), b"STOPPING=1"))
        assert set(told) <= {b"WATCHDOG=1"}


def test_tokens_that_are_made_while_it_runs_count(service: Service) -> None:
    make_tokens(service.directory, 4)
    with service.client(3) as client:
        client.run(lambda task: (nudge(task), 5), updates=1)


# A process.


def test_a_process_reads_its_file_again_at_sighup_and_outlives_a_broken_one(tmp_path: Path) -> None:
    make_certs(tmp_path, [])
    make_tokens(tmp_path, 1)
    processes = Processes(tmp_path, "fedasync")
    try:
        server = processes.serve()
        assert server.pid is not None

        def at_sighup(text: str, event: str) -> None:
            (tmp_path / OPERATIONS).write_text(text)
            os.kill(server.pid or 0, signal.SIGHUP)
            until(lambda: processes.logged("server", event), 60)

        with Client(processes.address, tmp_path / "client-0.token", tmp_path / "ca.pem") as client:
            task = client.task(60)
            at_sighup("norm_bound = 1e-6\nzero_bound = 1e-6", "reloaded")
            with pytest.raises(RefusedError, match="its distance from the start"):
                client.push(task, nudge(task, 0.01), samples=5, timeout=60)
            at_sighup("norm_bound =", "not reloaded")
            with pytest.raises(RefusedError, match="its distance from the start"):
                client.push(task, nudge(task, 0.01), samples=5, timeout=60)
        assert len(processes.logged("server", "connected")) == 1
        server.terminate()
        assert processes.end_of(server) == 0
    finally:
        processes.end()
