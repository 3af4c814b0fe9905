"""A journal may have been written by anybody: no code that it names runs unless the operator names it too."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.core.errors import UserError
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal.opening import open_service, settings_in
from polytempo.serve.journal.replay import replay, what_if
from polytempo.serve.paths import DATABASE
from polytempo.serve.process.backup import back_up, restore
from polytempo.serve.storage.errors import JournalError
from polytempo.strategies.settings import StrategySettings
from support.serving import hosted, some_events, tiny_settings

CODE = """
from pathlib import Path

from polytempo.methods import Strategy

Path(__file__).with_suffix(".ran").touch()


class Mine(Strategy):
    def updated(self, update, now):
        self.model.mix(update.weights, 0.5)
"""


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A file of code that leaves a marker when it runs."""
    path = tmp_path / "canary.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def service(tmp_path: Path) -> Path:
    """The directory of a service of fedasync that has stopped."""
    (tmp_path / "service").mkdir()
    with hosted(tmp_path / "service") as host:
        some_events(host)
    return tmp_path / "service"


@pytest.fixture
def own(tmp_path: Path, canary: Path) -> Path:
    """The directory of a service of the canary's strategy that has stopped; nothing has run since."""
    (tmp_path / "own").mkdir()
    with hosted(tmp_path / "own", f"{canary}:Mine") as host:
        some_events(host)
    marker(canary).unlink()
    return tmp_path / "own"


def marker(canary: Path) -> Path:
    return canary.with_suffix(".ran")


def rewrite(service: Path, **changed: Any) -> None:
    """What somebody who can write the journal makes of its settings."""
    with closing(sqlite3.connect(service / "journal" / DATABASE)) as database, database:
        ((about,),) = database.execute("SELECT value FROM about WHERE name = 'settings'").fetchall()
        changed_about = json.dumps(json.loads(about) | changed)
        database.execute("UPDATE about SET value = ? WHERE name = 'settings'", (changed_about,))


def commands(service: Path) -> dict[str, list[str]]:
    """Every command that reads a journal's settings to make something of them."""
    journal = str(service / "journal")
    return {
        "replay": ["replay", journal],
        "what if": ["replay", journal, "--strategy", "fedbuff"],
        "restore": ["restore", str(service.parent / "copy"), str(service.parent / "elsewhere"), "--unsigned"],
        "export": ["export", str(service), str(service.parent / "models")],
        "devices": ["devices", str(service)],
        "erase": ["erase", str(service), "0"],
    }


@pytest.mark.parametrize("setting", ["strategy", "model", "data"])
@pytest.mark.parametrize("command", ["replay", "what if", "restore"])
def test_code_that_only_a_journal_names_is_not_run(service, canary, command, setting) -> None:
    rewrite(service, **{setting: f"{canary}:Mine"})
    back_up(service, service.parent / "copy")
    ran = CliRunner().invoke(app, commands(service)[command])
    assert isinstance(ran.exception, UserError)
    assert f"{setting} '{canary}:Mine'" in str(ran.exception)
    assert f"--allow-import {canary}:Mine" in str(ran.exception)
    assert not marker(canary).exists()
    assert not (service.parent / "elsewhere").exists()


def test_a_module_that_only_a_journal_names_is_not_imported(service, canary, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(canary.parent))
    rewrite(service, strategy="canary:Mine")
    with pytest.raises(UserError, match="--allow-import canary:Mine"):
        replay(service / "journal")
    assert not marker(canary).exists()


@pytest.mark.parametrize("setting", ["strategy", "model", "data"])
@pytest.mark.parametrize("command", ["replay", "what if", "restore", "export", "devices", "erase"])
def test_not_even_the_package_of_a_module_that_only_a_journal_names_is_imported(
    service, canary, monkeypatch, command, setting
) -> None:
    package = canary.parent / "stranger"
    package.mkdir()
    canary.rename(package / "__init__.py")
    monkeypatch.syspath_prepend(str(package.parent))
    rewrite(service, **{setting: "stranger.module:Mine"})
    back_up(service, service.parent / "copy")
    ran = CliRunner().invoke(app, commands(service)[command])
    assert "--allow-import stranger.module:Mine" in str(ran.exception)
    assert not marker(package / "__init__.py").exists()


@pytest.mark.parametrize("command", ["replay", "what if", "restore"])
def test_code_that_the_operator_repeats_is_run(own, canary, command) -> None:
    back_up(own, own.parent / "copy")
    assert not marker(canary).exists()
    ran = CliRunner().invoke(app, [*commands(own)[command], "--allow-import", f"{canary}:Mine"])
    assert ran.exception is None
    assert marker(canary).exists()


def test_another_name_in_the_same_file_has_to_be_repeated_too(own, canary) -> None:
    with pytest.raises(UserError, match=r"canary\.py:Mine"):
        replay(own / "journal", allowed=[f"{canary}:Other", str(canary), "Mine"])
    assert not marker(canary).exists()


def test_the_strategy_of_a_what_if_is_named_by_the_operator(own, canary) -> None:
    ran = CliRunner().invoke(app, ["replay", str(own / "journal"), "--strategy", f"{canary}:Mine", "--json"])
    assert ran.exception is None
    method = StrategySettings(strategy="fedbuff")
    with pytest.raises(UserError, match="--allow-import"):
        what_if(own / "journal", method)


def test_an_option_to_copy_is_one_word_of_the_shell(service) -> None:
    rewrite(service, strategy="a'$(touch b)\x1b[2J:C")
    with pytest.raises(UserError) as refused:
        settings_in(service / "journal")
    assert str(refused.value).endswith("--allow-import 'a'\"'\"'$(touch b)\\x1b[2J:C'")
    assert "\x1b" not in str(refused.value)


def test_a_backup_imports_nothing(own, canary, tmp_path) -> None:
    backed_up = back_up(own, tmp_path / "copy")
    assert backed_up.manifest.settings["strategy"] == f"{canary}:Mine"
    assert not marker(canary).exists()


@pytest.mark.parametrize(
    "changed",
    [
        *({setting: "CANARY:Mine"} for setting in ("strategy", "model", "data")),
        {"parameters": {"mixing": "CANARY:Mine"}},
        {"parameters": {"CANARY:Mine": 1}},
        {"lr": "CANARY:Mine"},
        {"data_dir": "CANARY"},
        {"init": "CANARY"},
        {"proxies": "CANARY"},
    ],
    ids=str,
)
def test_serve_runs_nothing_of_a_journal_that_it_was_not_given(service, canary, changed) -> None:
    rewrite(service, **json.loads(json.dumps(changed).replace("CANARY", str(canary))))
    with pytest.raises(UserError):
        open_service(service / "journal", tiny_settings(service))
    assert not marker(canary).exists()


def test_the_command_serve_refuses_a_journal_of_other_code_before_it_runs(service, canary) -> None:
    make_tokens(service, 1)
    rewrite(service, strategy=f"{canary}:Mine")
    given = [
        "--dir",
        str(service),
        "--insecure",
        "--listen",
        "127.0.0.1:0",
        "--init",
        str(service / "init.safetensors"),
    ]
    ran = CliRunner().invoke(app, ["serve", "fedasync", *given])
    assert isinstance(ran.exception, UserError)
    assert "holds another service (strategy is" in str(ran.exception)
    assert not marker(canary).exists()


@pytest.mark.parametrize("setting", ["data_dir", "init", "proxies"])
def test_a_journal_that_names_a_file_to_read_is_refused(service, setting) -> None:
    rewrite(service, **{setting: "/dev/zero"})
    for read in (replay, settings_in, lambda journal: back_up(service, service.parent / "copy")):
        with pytest.raises(JournalError, match=rf"names files to read \({setting}\)"):
            read(service / "journal")


class Harmful:
    """Runs when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self._canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self._canary.read_text().replace("__file__", repr(str(self._canary))),)


def test_no_pickle_in_a_journals_proxy_sets_is_loaded(service, canary, tmp_path) -> None:
    rows = np.array([Harmful(canary)], dtype=object)
    np.savez(service / "journal" / "proxies.npz", x=rows, y=np.zeros(1), cluster=np.zeros(1))
    with closing(sqlite3.connect(service / "journal" / DATABASE)) as database, database:
        database.execute("UPDATE about SET value = '\"digest\"' WHERE name = 'proxies'")
    for read in (replay, lambda journal: open_service(journal, tiny_settings(service))):
        with pytest.raises(JournalError, match="holds no proxy sets"):
            read(service / "journal")
    assert not marker(canary).exists()


def test_a_class_that_a_snapshot_names_is_not_imported(service, canary, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(canary.parent))
    with hosted(service) as host:
        journal = host.host.journal
        made = journal.write_snapshot(journal.last, '{"object":"canary.Mine","state":{}}', [])
        journal.keep_snapshot(made)
        journal.forget_before_last_snapshot()
        host.host.snapshots.finish = lambda service: None  # type: ignore[method-assign]
    with pytest.raises(JournalError, match="No snapshot of the journal"):
        open_service(service / "journal", tiny_settings(service))
    with pytest.raises(JournalError, match=r"canary\.Mine"):
        replay(service / "journal")
    assert not marker(canary).exists()


def test_restored_code_runs_only_if_it_is_repeated(own, canary, tmp_path) -> None:
    back_up(own, tmp_path / "copy")
    with pytest.raises(UserError, match=f"^The backup in {tmp_path / 'copy'} names code .*--allow-import"):
        restore(tmp_path / "copy", tmp_path / "elsewhere", unsigned=True)
    assert not marker(canary).exists()
    restore(tmp_path / "copy", tmp_path / "elsewhere", allowed=[f"{canary}:Mine"], unsigned=True)
    assert marker(canary).exists()
