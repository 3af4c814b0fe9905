"""An erased client leaves nothing in a service's directory, and the others go on as before."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.core.errors import PassingError, UserError
from polytempo.core.state import digest
from polytempo.serve.access.roster import Roster
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import existing_journal
from polytempo.serve.journal.replay import replay
from polytempo.serve.paths import ACCESS, JOURNAL, STATUS
from polytempo.serve.process.backup import back_up
from polytempo.serve.process.erasing import erase, erasures
from support.postgres import copy_store, files_in_database, in_files, is_in_database
from support.serving import hosted, nudge, running

pytestmark = pytest.mark.usefixtures("store")

ERASED, CLIENTS = 1, 3
WINDOW = 8
"""Numbers in a row by which an update is recognised: pages of a database cut it into pieces."""


@pytest.fixture(params=[600, 20_000], ids=["in rows", "in segments"])
def service(tmp_path: Path, store: str, request: pytest.FixtureRequest) -> Path:
    """Three clients have handed in twice each. There are two snapshots and a status, and the server has died."""
    make_tokens(tmp_path, CLIENTS)
    save_file({"weight": torch.zeros(request.param)}, tmp_path / "first.safetensors")
    with hosted(tmp_path, init=tmp_path / "first.safetensors", norm_bound=1e6) as server:
        for client in range(CLIENTS):
            server.hello(client)
            server.ready(client)
        for count in range(2):
            for client in range(CLIENTS):
                server.clock.now += 1.5
                server.push(client, weights=handed_in(client, count, request.param), accuracy=0.25, loss=1.0)
            if count == 0:
                server.host.journal.snapshot(server.host.service.save_state())
        server.host.write_status()
    return tmp_path


def handed_in(client: int, count: int, size: int) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * client + count))


def found_in(directory: Path, client: int) -> list[str]:
    """Files that hold any piece of what the client handed in."""
    size = existing(directory).schema.size
    pieces = [
        handed_in(client, count, size)[begin : begin + WINDOW].numpy().tobytes()
        for count in range(2)
        for begin in range(0, size - WINDOW, size // 20)
    ]
    files = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    if is_in_database(directory):
        files |= {path: path.read_bytes() for path in files_in_database(directory)}
    return [path.name for path, content in files.items() if any(piece in content for piece in pieces)]


def existing(directory: Path) -> Journal:
    journal = existing_journal(directory / JOURNAL)
    journal.close()
    return journal


def of_others(directory: Path) -> dict[int, str]:
    """Digests of what the service keeps of each other client."""
    state = replay(directory / JOURNAL).service
    return {
        client: digest(member, state.flights.get(client), state.strategy.model_for(client))
        for client, member in state.members.items()
        if client != ERASED
    }


def test_no_byte_of_what_the_client_handed_in_is_left_and_the_others_are_as_they_were(service: Path) -> None:
    assert found_in(service, ERASED)
    before = of_others(service)
    assert (service / JOURNAL / STATUS).exists()
    done = erase(service, ERASED)
    assert found_in(service, ERASED) == []
    assert of_others(service) == before
    state = replay(service / JOURNAL)
    assert ERASED not in state.service.members
    assert ERASED not in state.service.flights
    assert state.event == done.event
    assert not (service / JOURNAL / STATUS).exists()


def test_the_journal_says_who_was_erased_and_when_and_so_do_backups(service: Path) -> None:
    done = erase(service, ERASED)
    back_up(service, service / "backup")
    for directory in (service, service / "backup"):
        (record,) = erasures(existing(directory))
        assert (record["client"], record["event"]) == (ERASED, done.event)
        assert record["at"].endswith("+00:00")
    assert found_in(service / "backup", ERASED) == []


def test_the_service_starts_again_and_the_client_may_come_back_as_a_newcomer(tmp_path: Path) -> None:
    with running(tmp_path, clients=2) as server, server.client(0) as a, server.client(1) as b:
        for client in (a, b):
            task = client.task()
            client.push(task, nudge(task), samples=10)
    erase(tmp_path, 1)
    assert 1 not in Roster.read(tmp_path / ACCESS).clients
    assert not (tmp_path / "client-1.token").exists()
    make_tokens(tmp_path, 2)
    with running(tmp_path) as server:
        for number, updates in ((0, 2), (1, 1)):
            with server.client(number) as client:
                task = client.task()
                client.push(task, nudge(task), samples=10)
            assert server.host.service.members[number].updates == updates


def test_a_running_service_is_not_touched(tmp_path: Path) -> None:
    with running(tmp_path, clients=1) as server, server.client(0) as client:
        client.task()
        with pytest.raises(PassingError, match=r"is running\. Nothing was changed\. Stop it, erase"):
            erase(tmp_path, 0)
        assert Roster.read(tmp_path / ACCESS).clients


def test_a_stranger_is_not_erased(service: Path) -> None:
    with pytest.raises(UserError, match=r"has never met client 7\. Nothing was changed"):
        erase(service, 7)
    with pytest.raises(UserError, match="holds no service"):
        erase(service / "elsewhere", 1)


def test_after_it_there_is_no_status_until_the_next_start(service: Path) -> None:
    erase(service, ERASED)
    ran = CliRunner().invoke(app, ["status", "--dir", str(service)])
    assert isinstance(ran.exception, UserError)
    assert "There is nothing to show until the service has started again" in str(ran.exception)
    assert CliRunner().invoke(app, ["status", "--dir", str(service), "--check"]).exit_code == 1


def test_the_command_says_what_remains(service: Path) -> None:
    result = CliRunner().invoke(app, ["erase", str(service), str(ERASED)], catch_exceptions=False)
    assert f"erased client {ERASED}" in result.stdout
    for word in ("models", "backups", "logs", "record"):
        assert f"\n  {word}" in result.stdout or f"\n  a {word}" in result.stdout
    again = CliRunner().invoke(app, ["erase", str(service), str(ERASED), "--json"], catch_exceptions=False)
    assert json.loads(again.stdout)["was_done"]


@pytest.mark.parametrize(("strategy", "may"), [("Keeping", True), ("Forgetting", False), ("Heir", False)])
def test_the_state_of_a_strategy_of_ones_own_may_hold_the_client_unless_it_can_forget(
    tmp_path: Path, strategy: str, may: bool
) -> None:
    own = f"support.own_strategies:{strategy}"
    make_tokens(tmp_path, 2)
    with hosted(tmp_path, own, clip=3.0) as server:
        server.hello(ERASED)
        server.ready(ERASED)
        server.push(ERASED)
    command = ["erase", str(tmp_path), str(ERASED), "--allow-import", own]
    said = CliRunner().invoke(app, command, catch_exceptions=False).stdout
    assert ("backups, but for your strategy's state, hold no update" in said) == may
    assert ("\n  the state  of your strategy may still hold" in said) == may
    again = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    assert json.loads(again.stdout)["may_remember"] == may


def test_a_registered_strategy_knows_what_to_forget(service: Path) -> None:
    assert not erase(service, ERASED).may_remember


@in_files
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("client", [ERASED, 7])
def test_what_root_leaves_belongs_to_the_services_user(service: Path, client: int) -> None:
    for path in (service, *service.rglob("*")):
        os.chown(path, 1234, 1234)
    with suppress(UserError):
        erase(service, client)
    assert {path.stat().st_uid for path in (service / JOURNAL).iterdir()} == {1234}
    assert (service / ACCESS).stat().st_uid == 1234


@pytest.fixture
def linked(service: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The service's journal lies on another disk."""
    elsewhere = tmp_path_factory.mktemp("disk") / "journal"
    (service / JOURNAL).rename(elsewhere)
    (service / JOURNAL).symlink_to(elsewhere)
    return service


@in_files
def test_the_journal_may_be_a_link_to_another_disk(linked: Path) -> None:
    erase(linked, ERASED)
    assert (linked / JOURNAL).is_symlink()
    assert found_in((linked / JOURNAL).resolve().parent, ERASED) == []
    assert ERASED not in replay(linked / JOURNAL).service.members


@in_files
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_behind_a_link_stay_with_the_owner_of_their_folder(linked: Path) -> None:
    os.chown(linked, 1234, 1234)
    folder = (linked / JOURNAL).resolve()
    for path in (folder, *folder.iterdir()):
        os.chown(path, 4321, 4321)
    erase(linked, ERASED)
    assert {path.stat().st_uid for path in folder.iterdir()} == {4321}


@in_files
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_cannot_be_given_away_is_named_and_hides_no_other_error(service: Path) -> None:
    (service / JOURNAL / "stray").symlink_to("/dev/null")
    with pytest.raises(UserError, match="has never met client 7"):
        erase(service, 7)
    with pytest.raises(UserError, match=r"Cannot give the files in .*\(stray\)\. Move away"):
        erase(service, ERASED)


@in_files
def test_only_root_gives_files_away(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (service / JOURNAL / "stray").symlink_to("/dev/null")
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    erase(service, ERASED)
    assert found_in(service, ERASED) == []


class Crash(BaseException):
    pass


def crashed(service: Path, to: Path, at: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What an erasure leaves that ends when it comes to this function."""

    def crash(*_: Any) -> None:
        shutil.copytree(service, to)
        if is_in_database(service):
            copy_store(service, to)
        raise Crash

    monkeypatch.setattr(at, crash)
    with pytest.raises(Crash):
        erase(service, ERASED)
    monkeypatch.undo()
    return to


JOURNALS = "polytempo.serve.journal.journal.Journal"
ERASING = "polytempo.serve.process.erasing"
STEPS = (f"{ERASING}._take_access", f"{ERASING}._begin_anew", f"{ERASING}.pack", f"{JOURNALS}.begin_anew")


@pytest.mark.parametrize("at", STEPS)
def test_a_crash_before_the_new_state_counts_leaves_the_old_service(
    service: Path, at: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = replay(service / JOURNAL).service.digest()
    to = tmp_path_factory.mktemp("crashed") / "service"
    left = crashed(service, to, at, monkeypatch)
    assert replay(left / JOURNAL).service.digest() == before
    assert not erase(left, ERASED).was_done
    assert found_in(left, ERASED) == []


@pytest.mark.parametrize("at", [f"{JOURNALS}.scrub", "polytempo.serve.journal.journal.remove_others"])
def test_a_crash_after_it_leaves_the_new_service_and_the_same_command_scrubs_the_files(
    service: Path, at: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = of_others(service)
    to = tmp_path_factory.mktemp("crashed") / "service"
    left = crashed(service, to, at, monkeypatch)
    assert ERASED not in replay(left / JOURNAL).service.members
    assert of_others(left) == before
    assert erase(left, ERASED).was_done
    assert found_in(left, ERASED) == []
    assert of_others(left) == before


@in_files
def test_a_disk_that_is_full_leaves_the_old_service(service: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = replay(service / JOURNAL).service.digest()

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("polytempo.serve.journal.files.store.save_packed", full)
    with pytest.raises(PassingError, match="No space left on device"):
        erase(service, ERASED)
    monkeypatch.undo()
    assert replay(service / JOURNAL).service.digest() == digests
