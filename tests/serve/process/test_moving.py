"""A service from its directory to a database and back, and all commands on one that is kept in a database."""

import json
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.core.errors import PassingError, UserError
from polytempo.serve.access.roster import Roster
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.replay import newest, replay, what_if
from polytempo.serve.paths import ACCESS, JOURNAL, OPERATIONS, STORE
from polytempo.serve.process.backup import back_up
from polytempo.serve.process.backup import restore as restore_backup
from polytempo.serve.process.moving import move
from polytempo.serve.storage.address import note_database
from polytempo.serve.storage.documents import documents_of
from polytempo.serve.storage.errors import JournalError
from polytempo.strategies.settings import StrategySettings
from support.damage import damage_last_body, flip
from support.postgres import NUMBERS, Server, in_schema
from support.serving import Hosted, hosted, restarted, some_events, tiny_settings

pytestmark = pytest.mark.usefixtures("bodies_lie_apart")

restore = partial(restore_backup, unsigned=True)


def address(database: Server) -> str:
    return database.url(f"moved_{next(NUMBERS)}")


def stopped(directory: Path) -> str:
    """A service that has stopped; its digest."""
    make_tokens(directory, 2)
    (directory / OPERATIONS).write_text("patience = 7.0\n")
    with hosted(directory) as served:
        some_events(served)
        served.host.journal.snapshot(served.host.service.save_state())
        served.push(0)
        return served.digest()


def kept_in_database(directory: Path, database: Server) -> str:
    note_database(directory, address(database))
    make_tokens(directory, 2)
    with hosted(directory) as served:
        some_events(served)
        return served.digest()


def test_a_service_moves_to_a_database_and_back(tmp_path: Path, database: Server) -> None:
    service, back = tmp_path / "service", tmp_path / "back"
    digest, url = stopped(service), address(database)
    moved = move(str(service), url)
    assert (moved.digest, moved.noted) == (digest, True)
    assert restarted(service, tiny_settings(service)) == digest
    assert (service / STORE).stat().st_mode & 0o077 == 0
    (service / OPERATIONS).unlink()
    assert documents_of(service).read(OPERATIONS) == b"patience = 7.0\n"
    assert move(url, str(back)).digest == digest
    assert (back / OPERATIONS).read_text() == "patience = 7.0\n"
    assert sorted(Roster.read(back / ACCESS).clients) == [0, 1]
    assert restarted(back, tiny_settings(service)) == digest


def test_what_was_left_does_not_start_any_more(tmp_path: Path, database: Server) -> None:
    service = tmp_path / "service"
    stopped(service)
    move(str(service), address(database))
    settings = tiny_settings(service)
    (service / STORE).unlink()
    with pytest.raises(JournalError, match=r"was moved to postgresql://.*Nothing was changed\. Start it from there"):
        open_service(service / JOURNAL, settings)
    assert replay(service / JOURNAL).service.updates  # to look at it is another thing


def test_a_service_that_runs_or_a_place_that_is_taken_is_refused(tmp_path: Path, database: Server) -> None:
    service, other = tmp_path / "service", tmp_path / "other"
    stopped(service)
    stopped(other)
    with hosted(other), pytest.raises(PassingError, match=r"is running\. Nothing was changed"):
        move(str(other), address(database))
    with pytest.raises(UserError, match="holds a journal already"):
        move(str(service), str(other))
    with pytest.raises(UserError, match="holds no service"):
        move(str(tmp_path / "nowhere"), address(database))
    url = address(database)
    move(str(service), url)
    with pytest.raises(UserError, match="holds a service already"):
        move(str(other), url)
    assert restarted(other, tiny_settings(other))


def test_damage_on_the_way_is_noticed_and_nothing_is_marked(tmp_path: Path, database: Server) -> None:
    service = tmp_path / "service"
    stopped(service)
    damage_last_body(service, flip)
    url = address(database)
    with pytest.raises(JournalError, match="damaged at event"):
        move(str(service), url)
    damage_last_body(service, flip)
    assert move(str(service), url).event  # what was left of the first try is no obstacle


@pytest.mark.parametrize("target", ["files", "database"])
def test_a_backup_of_a_database_is_restored_anywhere(target: str, tmp_path: Path, database: Server) -> None:
    service, copy, elsewhere = tmp_path / "service", tmp_path / "copy", tmp_path / "elsewhere"
    digest = kept_in_database(service, database)
    manifest = back_up(service, copy).manifest
    assert {ACCESS, f"{JOURNAL}/journal.sqlite"} <= manifest.sha256.keys()
    if target == "database":
        note_database(elsewhere, address(database))
    restored = restore(copy, elsewhere)
    assert (restored.event, restored.digest) == (manifest.event, digest)
    assert sorted(Roster.read(elsewhere / ACCESS).clients) == [0, 1]
    again = Hosted(elsewhere, settings=tiny_settings(service))
    assert again.host.service.number > 10**12
    some_events(again, 1)
    again.close()
    with pytest.raises(UserError, match=r"holds a (journal|service) already"):
        restore(copy, elsewhere)


def test_a_backup_is_taken_while_the_service_runs(tmp_path: Path, database: Server) -> None:
    note_database(tmp_path, address(database))
    with hosted(tmp_path) as served:
        some_events(served)
        digest, last = served.digest(), served.host.journal.last
        assert back_up(tmp_path, tmp_path / "copy").manifest.event == last
        served.push(0)
    assert restore(tmp_path / "copy", tmp_path / "elsewhere").digest == digest


def test_a_body_that_the_database_has_changed_is_not_backed_up(tmp_path: Path, database: Server) -> None:
    kept_in_database(tmp_path, database)
    damage_last_body(tmp_path, flip)
    with pytest.raises(JournalError, match="damaged at event"):
        back_up(tmp_path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_what_if_reads_a_database(tmp_path: Path, database: Server) -> None:
    digest = kept_in_database(tmp_path, database)
    found = what_if(tmp_path / JOURNAL, StrategySettings(strategy="fedbuff", steps=4))
    assert found.real.service.digest() == digest
    assert found.other.updates
    assert newest(tmp_path).service.digest() == digest


def test_the_commands_know_where_a_service_is_kept(tmp_path: Path, database: Server) -> None:
    service = tmp_path / "service"
    digest = stopped(service)
    url = address(database)

    def run(*words: object) -> str:
        done = CliRunner().invoke(app, [*map(str, words)])
        assert done.exit_code == 0, (words, done.output, done.exception)
        return done.output

    assert json.loads(run("move", service, url, "--json"))["digest"] == digest
    (service / OPERATIONS).unlink()
    (service / ACCESS).unlink()
    assert "client-1" in run("tokens", service)
    assert "client 1" in run("codes", service, 1)
    assert "enrol" in run("tokens", service)
    assert "7.0" in run("settings", service)
    (tmp_path / "new.toml").write_text("patience = 9.0\n")
    assert "within a second" in run("settings", service, tmp_path / "new.toml")
    assert "9.0" in run("settings", service)
    assert digest in run("replay", service / JOURNAL, "--json")
    assert "models of 3 clients" in run("export", service, tmp_path / "models")
    assert "event" in run("backup", service, tmp_path / "copy")
    assert "restored" in run("restore", tmp_path / "copy", tmp_path / "back", "--unsigned")
    assert "erased client 1" in run("erase", service, 1)
    assert "moved the service" in run("move", service, tmp_path / "files")
    assert "secret" not in run("tokens", service, "--clients", 1)


def test_settings_with_a_mistake_are_not_put_in_place(tmp_path: Path, database: Server) -> None:
    kept_in_database(tmp_path, database)
    (tmp_path / "wrong.toml").write_text("patience = -1\n")
    done = CliRunner().invoke(app, ["settings", str(tmp_path), str(tmp_path / "wrong.toml")])
    assert isinstance(done.exception, UserError)
    assert not documents_of(tmp_path).has(OPERATIONS)


def test_a_directory_whose_service_is_kept_there_is_not_kept_in_a_database_by_an_option(tmp_path: Path) -> None:
    stopped(tmp_path)
    words = ["serve", "fedasync", "--dir", str(tmp_path), "--insecure", "--store", "postgresql://x/y"]
    done = CliRunner().invoke(app, words)
    assert "polytempo move" in str(done.exception)
    assert not (tmp_path / STORE).exists()


def test_several_services_share_a_database(tmp_path: Path, database: Server) -> None:
    digests = {name: kept_in_database(tmp_path / name, database) for name in ("one", "two")}
    in_schema(tmp_path / "one", "DELETE FROM events RETURNING 1")
    assert restarted(tmp_path / "two", tiny_settings(tmp_path / "two")) == digests["two"]
