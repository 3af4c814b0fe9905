"""What an operator's machine may hold that nobody planned: full disks, folders in place of files, odd words."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from polytempo.core.errors import UserError
from polytempo.report.page import write_report
from polytempo.serve.access.live import Access
from polytempo.serve.access.roster import Pass, Roster
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.addresses import peer_of
from polytempo.serve.logs import log_to_file
from polytempo.serve.paths import ACCESS, STATUS
from polytempo.serve.server.status import read_status
from polytempo_client.client import Client
from polytempo_client.logs import log
from polytempo_client.session.addresses import check_loopback, checked_address
from polytempo_client.session.credentials import hash_of
from support.serving import ManualClock, hosted, join_all, nudge, running, until
from support.synthetic_runs import simple_run


def test_a_log_on_a_full_disk_is_one_line_on_stderr_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    (tmp_path / "service.log").symlink_to("/dev/full")
    log_to_file(tmp_path / "service.log")
    for number in range(5):
        log("something", number=number)
    assert len(said.getvalue().splitlines()) == 1
    assert "No space left on device" in said.getvalue()


@pytest.mark.parametrize("token", ["a\nb", "a\0b", "\xe9", "x" * 100_000, "", "a b", "\ud800", "a\r\nx: y"])
def test_a_token_that_cannot_travel_is_an_error_at_once(token: str) -> None:
    with pytest.raises(UserError, match="expected"):
        Client("127.0.0.1:9", token, insecure=True)


@pytest.mark.parametrize("content", [b"a b", b"", b"a\0b", b"\xe9", b"x" * (2 << 20)])
def test_a_token_file_that_holds_something_else_is_an_error_at_once(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    with pytest.raises(UserError, match="token"):
        Client("127.0.0.1:9", tmp_path / "token", insecure=True)


@pytest.mark.parametrize("plant", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_an_access_file_that_is_something_else_lets_sessions_go_on_and_nobody_new_in(
    tmp_path: Path, plant: Any
) -> None:
    make_tokens(tmp_path, 1)
    seconds = ManualClock()
    access = Access(tmp_path, seconds=seconds)
    before = access.roster
    (tmp_path / ACCESS).rename(tmp_path / "aside")
    plant(tmp_path / ACCESS)
    assert not access.refresh()
    assert access.roster == before
    assert access.problem is not None
    seconds.now += 60
    assert access.is_blind
    (tmp_path / ACCESS).rmdir() if (tmp_path / ACCESS).is_dir() else (tmp_path / ACCESS).unlink()
    (tmp_path / "aside").rename(tmp_path / ACCESS)
    access.refresh()
    assert access.problem is None


def test_a_status_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    with hosted(tmp_path) as served:
        join_all(served)
        path = served.host.journal.directory / STATUS
        path.unlink(missing_ok=True)
        (path / "in the way").mkdir(parents=True)
        served.host.write_status(stopping=True)
        served.push(0)
        assert served.host.service.updates == 1
        with pytest.raises(UserError, match="holds no status"):
            read_status(path.parent)


def test_a_status_of_a_process_that_is_another_by_now_is_no_sign_of_life(tmp_path: Path) -> None:
    """Process numbers are used again; a status is fresh for ten seconds."""
    with hosted(tmp_path) as served:
        served.host.write_status()
        path = served.host.journal.directory / STATUS
        old = path.read_text().replace('"written": ', '"written": 1000000000.0, "was": ')
        path.write_text(old.replace(f'"process": {os.getpid()}', '"process": 1'))
        assert not read_status(path.parent)["running"]


def test_five_thousand_tokens_are_read_and_used(tmp_path: Path) -> None:
    roster = Roster(clients={number: Pass(token=hash_of(f"token-{number}")) for number in range(5000)})
    (tmp_path / ACCESS).write_bytes(roster.as_json())
    with running(tmp_path) as server, server.client_with("token-4999") as client:
        task = client.task(30)
        client.push(task, nudge(task), samples=5, timeout=30)
        until(lambda: server.host.service.updates == 1)


def test_addresses_with_scopes_and_odd_ones_are_told_apart() -> None:
    assert peer_of("fe80::1%eth0") == peer_of("fe80::2%eth1") == "fe80::/64"
    check_loopback("[::1%lo]:7733")
    for address in ("[fe80::1%eth0]:7733", "127.0.0.1.example:7733", "[::1%\n].example:1"):
        with pytest.raises(UserError, match="only loopback"):
            check_loopback(address)
    for address in ("a\nb:1", "localhost:99999", "[::1%\n]:1", ":1", "host:", "host:-1"):
        with pytest.raises(UserError, match="is no address"):
            checked_address(address)


def test_names_in_a_run_that_somebody_sent_are_text_in_the_report(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    run = simple_run(
        hostile, [0.1, 0.5], data=hostile, partition=hostile, devices=hostile, parameters={hostile: hostile}
    )
    page = write_report([run], tmp_path / "report.html", hostile).read_text()
    assert "<script>alert" not in page
    assert "<img src=x" not in page
