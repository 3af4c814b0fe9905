"""A service is copied while it runs, and goes on elsewhere from the copy."""

import json
import os
import shlex
import shutil
import sqlite3
import threading
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polytempo.cli.backups import serve_command
from polytempo.cli.main import app
from polytempo.cli.options import parse_assignments
from polytempo.core.errors import PassingError, UserError
from polytempo.serve.access.enrolment import enrol, make_code
from polytempo.serve.access.roster import Roster
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal import copying, opening
from polytempo.serve.journal.continuing import RENUMBERED_BY, Consent
from polytempo.serve.journal.files import store as journals
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.replay import replay
from polytempo.serve.journal.settings import make_settings
from polytempo.serve.paths import ACCESS, DATABASE
from polytempo.serve.process.backup import Manifest, back_up
from polytempo.serve.process.backup import restore as restore_backup
from support.serving import hosted, nudge, running, some_events, tiny_settings

restore = partial(restore_backup, unsigned=True)
"""Signatures have tests of their own: test_backup_trust.py."""


@contextmanager
def under_load(server, clients=2):
    """Clients push without a pause; what is given waits until so many more updates are safe."""
    pushed = threading.Semaphore(0)
    stopping = threading.Event()

    def push(number):
        with server.client(number) as client:
            while not stopping.is_set():
                task = client.task(30)
                client.push(task, nudge(task), samples=1, timeout=30)
                pushed.release()

    def wait_for(updates):
        assert all(pushed.acquire(timeout=30) for _ in range(updates))

    threads = [threading.Thread(target=push, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield wait_for
    finally:
        stopping.set()
        for thread in threads:
            thread.join()


@pytest.fixture
def stopped(tmp_path):
    """The directory of a service that has stopped, with bodies beside its database."""
    with hosted(tmp_path) as service:
        some_events(service)
    return tmp_path


@pytest.fixture
def large_bodies(monkeypatch):
    """As if updates were too large for the database's rows."""
    monkeypatch.setattr(journals, "SMALL_BYTES", 0)


def with_tokens(server, directory):
    """A directory in which the clients of another may talk to the service."""
    directory.mkdir()
    for path in [*server.directory.glob("*.json"), *server.directory.glob("*.token")]:
        shutil.copy(path, directory)
    return directory


def test_a_backup_under_load_holds_the_state_after_one_event(tmp_path, large_bodies):
    with running(tmp_path / "live", clients=2) as server:
        with under_load(server) as wait_for:
            wait_for(20)
            manifest = back_up(server.directory, tmp_path / "copy").manifest
            wait_for(20)
        restored = restore(tmp_path / "copy", tmp_path / "elsewhere")
        assert server.host.journal.last > manifest.event
        original = replay(server.directory / "journal", manifest.event)
    assert restored.event == manifest.event == original.event
    assert restored.digest == original.figures()["digest"]


def test_clients_go_on_with_a_restored_service_and_tasks_of_the_lost_future_are_void(tmp_path):
    with running(tmp_path / "live", clients=1) as server, server.client(0) as client:
        task = client.task(10)
        client.push(task, nudge(task), samples=1, timeout=10)
        back_up(server.directory, tmp_path / "copy")
        for _ in range(3):
            client.push(client.task(10), nudge(task), samples=1, timeout=10)
        lost, port = client.task(10), server.port
        elsewhere = with_tokens(server, tmp_path / "elsewhere")
        server.stop()
        restore(tmp_path / "copy", elsewhere)
        shutil.copy(server.directory / "init.safetensors", elsewhere)
        with running(elsewhere, port=port) as again:
            held = client.task(30)
            while held is lost:  # until the connection is back
                client.pull(30)
                held = client.task(30)
            assert lost.withdrawn
            client.push(held, nudge(held), samples=1, timeout=30)
            assert client.task(30).number > RENUMBERED_BY > lost.number
            assert again.host.service.members[0].updates == 2


def test_a_backup_holds_no_key_and_no_token(stopped, tmp_path):
    for name in ("server.key", "ca.key", "server.pem", "client-0.token", "access.json", "service.toml"):
        (stopped / name).write_text("{}")
    manifest = back_up(stopped, tmp_path / "copy").manifest
    copied = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*.*")}
    assert copied == {*manifest.sha256, "manifest.json"}
    assert {name for name in copied if "/" not in name} == {"manifest.json", "access.json", "service.toml"}
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "copy").rglob("*")} == {0}


def test_a_backup_changes_nothing_in_the_service(stopped, tmp_path):
    before = {path.name: path.read_bytes() for path in (stopped / "journal").iterdir()}
    back_up(stopped, tmp_path / "copy")
    assert {path.name: path.read_bytes() for path in (stopped / "journal").iterdir()} == before


def test_a_file_that_the_server_forgets_meanwhile_lets_the_backup_begin_again(tmp_path, large_bodies, monkeypatch):
    (tmp_path / "live").mkdir()
    with hosted(tmp_path / "live") as service:
        some_events(service)
        copied, copy_database = [], copying._copy_database

        def copy_and_prune(source, target):
            copy_database(source, target)
            if not copied:
                service.host.journal.snapshot(service.host.service.save_state())
                service.host.journal.forget_before_last_snapshot()
                service.push(1)
            copied.append(target)

        monkeypatch.setattr(copying, "_copy_database", copy_and_prune)
        manifest = back_up(tmp_path / "live", tmp_path / "copy").manifest
        assert len(copied) == 2
        assert manifest.event == service.host.journal.last
        assert restore(tmp_path / "copy", tmp_path / "elsewhere").digest == service.digest()


def test_a_journal_with_a_missing_file_is_not_backed_up(stopped, tmp_path):
    next((stopped / "journal").glob("snapshot-*")).unlink()
    with pytest.raises(UserError, match=r"snapshot-.* was missing each of the 5 times"):
        back_up(stopped, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert not list(tmp_path.glob(".copy*"))


def test_a_body_that_is_cut_off_is_not_backed_up(tmp_path, large_bodies):
    with hosted(tmp_path) as service:
        some_events(service)
    (bodies,) = (tmp_path / "journal").glob("*.bodies")
    with bodies.open("r+b") as file:
        file.truncate(10)
    with pytest.raises(UserError, match="cut off"):
        back_up(tmp_path, tmp_path / "copy")


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda copy: damage(copy / "journal" / DATABASE), "journal/journal.sqlite is not what was written"),
        (lambda copy: (copy / "journal/initial.safetensors").unlink(), "initial.safetensors is missing"),
        (lambda copy: (copy / "manifest.json").write_text("{"), "manifest.json cannot be read"),
        (
            lambda copy: (copy / "manifest.json").write_text("{}"),
            r"manifest\.json cannot be read \(event is missing\)\. Nothing was changed",
        ),
        (lambda copy: (copy / "manifest.json").unlink(), "is no backup"),
    ],
)
def test_a_damaged_backup_is_named_and_not_restored(stopped, tmp_path, harm, said):
    back_up(stopped, tmp_path / "copy")
    harm(tmp_path / "copy")
    with pytest.raises(UserError, match=said):
        restore(tmp_path / "copy", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_a_backup_of_another_version_is_restored_only_up_to_its_snapshot_and_only_if_allowed(stopped, tmp_path):
    journal = Journal(stopped / "journal")
    journal.describe(journal.about | {"versions": journal.about["versions"] | {"code": "another"}})
    journal.close()
    back_up(stopped, tmp_path / "copy")
    with pytest.raises(UserError, match="written by another version"):
        restore(tmp_path / "copy", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()
    assert restore(tmp_path / "copy", tmp_path / "elsewhere", Consent(lose_tail=True)).event == 1


@pytest.mark.parametrize("option", ["--accept-version", "--lose-tail"])
def test_restore_takes_the_advice_that_it_gives_about_another_version(stopped, tmp_path, option):
    with closing(Journal(stopped / "journal")) as journal:
        journal.describe(journal.about | {"versions": journal.about["versions"] | {"code": "another"}})
    event = back_up(stopped, tmp_path / "copy").manifest.event
    command = ["restore", str(tmp_path / "copy"), str(tmp_path / "elsewhere"), "--unsigned", "--json"]
    assert option in str(CliRunner().invoke(app, command).exception)
    result = CliRunner().invoke(app, [*command, option], catch_exceptions=False)
    renumbered = event + 1  # clients may hold tasks of the other version
    assert json.loads(result.stdout)["event"] == (renumbered if option == "--accept-version" else 1)


def test_another_version_can_start_what_was_restored(stopped, tmp_path, monkeypatch):
    back_up(stopped, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "elsewhere")
    with closing(Journal(tmp_path / "elsewhere" / "journal")) as journal:
        assert journal.newest_snapshot() == journal.last
    monkeypatch.setattr(opening, "code_versions", lambda _: {"code": "another"})
    opened = opening.open_service(tmp_path / "elsewhere" / "journal", tiny_settings(tmp_path))
    assert opened.service.number > RENUMBERED_BY
    opened.journal.close()


def test_restore_leaves_out_an_event_that_is_named(stopped, tmp_path):
    event = back_up(stopped, tmp_path / "copy").manifest.event
    command = ["restore", str(tmp_path / "copy"), str(tmp_path / "elsewhere"), "--unsigned"]
    result = CliRunner().invoke(app, [*command, "--leave-out", str(event)], catch_exceptions=False)
    assert result.exit_code == 0
    with closing(Journal(tmp_path / "elsewhere" / "journal")) as journal:
        assert [row["event"] for row in journal.about["left_out"]] == [event]


def test_directories_that_hold_something_are_refused(stopped, tmp_path):
    (tmp_path / "empty").mkdir()
    back_up(stopped, tmp_path / "empty")
    with pytest.raises(UserError, match="exists already"):
        back_up(stopped, tmp_path / "empty")
    with pytest.raises(UserError, match="holds a journal already"):
        restore(tmp_path / "empty", stopped)
    with pytest.raises(UserError, match="holds no service to back up"):
        back_up(tmp_path / "nowhere", tmp_path / "copy")


def test_what_the_directory_has_already_is_not_taken_from_the_backup(stopped, tmp_path):
    make_tokens(stopped, 1)
    (stopped / "service.toml").write_text("# old")
    back_up(stopped, tmp_path / "copy")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "access.json").write_text("new")
    assert restore(tmp_path / "copy", elsewhere).kept == ["access.json"]
    assert (elsewhere / "access.json").read_text() == "new"
    assert (elsewhere / "service.toml").read_text() == "# old"


def test_one_time_codes_do_not_come_back_with_a_backup(stopped, tmp_path):
    make_tokens(stopped, 2)
    code = make_code(stopped, 7)
    back_up(stopped, tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "elsewhere")
    roster = Roster.read(tmp_path / "elsewhere" / ACCESS)
    assert sorted(roster.clients) == [0, 1]
    with pytest.raises(UserError, match="This code is not known"):
        enrol(tmp_path / "elsewhere", code, "0" * 64)


def test_one_time_codes_do_not_come_back_when_a_restore_is_interrupted_either(stopped, tmp_path, monkeypatch):
    make_tokens(stopped, 2)
    make_code(stopped, 7)
    (stopped / "service.toml").write_text("# old")
    back_up(stopped, tmp_path / "copy")

    def full(path, *given, **more):
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr("polytempo.serve.storage.documents.write_shared", full)
        with pytest.raises(UserError, match="No space left"):
            restore(tmp_path / "copy", tmp_path / "elsewhere")
    restore(tmp_path / "copy", tmp_path / "elsewhere")
    assert Roster.read(tmp_path / "elsewhere" / ACCESS).codes == {}
    assert (tmp_path / "elsewhere" / "service.toml").read_text() == "# old"


def test_a_backup_with_a_damaged_list_of_who_may_talk_is_not_restored(stopped, tmp_path):
    (stopped / ACCESS).write_text("{")
    back_up(stopped, tmp_path / "copy")
    with pytest.raises(UserError, match="is damaged"):
        restore(tmp_path / "copy", tmp_path / "elsewhere")
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_that_is_full_while_the_database_is_copied_is_not_called_a_damaged_journal(
    stopped, tmp_path, monkeypatch
):
    class FullDisk(sqlite3.Connection):
        def backup(self, *_, **__):
            raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(copying, "connect", lambda source: sqlite3.connect(source / DATABASE, factory=FullDisk))
    with pytest.raises(PassingError, match=r"Cannot copy the database to .*disk I/O error\. Make room"):
        back_up(stopped, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can restore for others")
def test_what_root_restores_into_somebodys_directory_is_theirs(stopped, tmp_path):
    make_tokens(stopped, 1)
    back_up(stopped, tmp_path / "copy")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.chown(elsewhere, 12345, 12345)
    restore(tmp_path / "copy", elsewhere)
    assert {path.stat().st_uid for path in elsewhere.rglob("*")} == {12345}


def test_the_commands_tell_the_event_and_the_digest(stopped, tmp_path_factory):
    digest, outside = replay(stopped / "journal").figures()["digest"], tmp_path_factory.mktemp("outside")
    said = CliRunner().invoke(app, ["backup", str(stopped), str(outside / "copy"), "--json"])
    event = json.loads(said.stdout)["event"]
    assert event == Manifest.model_validate_json((outside / "copy/manifest.json").read_text()).event
    said = CliRunner().invoke(app, ["restore", str(outside / "copy"), str(outside / "elsewhere"), "--unsigned"])
    assert f"to event {event}" in said.stdout
    assert digest in said.stdout
    assert f"  polytempo serve fedasync --dir {outside / 'elsewhere'} --clip none" in said.stdout


def test_a_backup_in_the_directory_of_the_service_is_refused(stopped, monkeypatch):
    monkeypatch.chdir(stopped)
    for to in (str(stopped / "copy"), "journal/../deep/er", "journal/copy"):
        ran = CliRunner().invoke(app, ["backup", ".", to])
        assert isinstance(ran.exception, UserError)
        assert "the directory of the service itself. Nothing was written. Choose" in str(ran.exception)
    assert not (stopped / "deep").exists()


def test_the_command_to_start_a_service_has_all_that_is_no_default():
    chosen = {"clip": None, "lr": "step:0.1:0.5:9", "steps": 3, "model": "own file.py:net"}
    parameters = {"staleness": "hinge:1:4", "mixing": 0.25, "name": "5"}
    settings = make_settings(strategy="fedasync", parameters=parameters, **chosen)
    words = shlex.split(serve_command(Path("here"), settings))
    assert words[:5] == ["polytempo", "serve", "fedasync", "--dir", "here"]
    given = dict(zip(words[5:-6:2], words[6:-6:2], strict=True))
    layers = make_settings(strategy="fedasync", personal_layers=("1", "3"))
    assert "--personal-layers 1,3" in serve_command(Path("here"), layers)
    assert given == {"--clip": "none", "--lr": "step:0.1:0.5:9", "--steps": "3", "--model": "own file.py:net"}
    assert parse_assignments(words[-5::2]) == parameters
    assert words[-5] == "staleness=hinge:1:4"
