"""An experiment file that somebody sent: it runs no code and writes nowhere else unless the user says so."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.core.errors import UserError
from polytempo.sim.experiment import read_experiment

CODE = """
from pathlib import Path
from polytempo.strategies.methods.fedasync import FedAsync
Path("ran").touch()
class Mine(FedAsync): pass
"""
FEW = ["--clients", "4", "--updates", "4", "--workers", "1", "--quiet", "--out", "out"]


@pytest.fixture
def sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(CODE)
    return Path("sent.toml")


@pytest.mark.parametrize("field", ["strategy", "model", "loss", "metric", "data"])
@pytest.mark.parametrize("code", ["mine.py:Mine", "mine:Mine", "mine.py:x.npz:Mine"])
def test_code_that_only_the_file_names_is_not_imported(sent: Path, field: str, code: str) -> None:
    others = "" if field == "strategy" else 'strategy = "fedasync"\n'
    sent.write_text(f'{others}{field} = "{code}"\n')
    with pytest.raises(UserError, match=f"--allow-import {code}"):
        read_experiment(sent, {}, {})
    assert not Path("ran").exists()


def test_a_name_that_looks_like_data_is_code_where_code_is_expected(sent: Path) -> None:
    sent.write_text('strategy = "mine.py:x.npz"\n')
    with pytest.raises(UserError, match="--allow-import"):
        read_experiment(sent, {}, {})


def test_code_that_the_user_repeats_is_imported(sent: Path) -> None:
    sent.write_text('strategy = "mine.py:Mine"\n')
    assert isinstance(CliRunner().invoke(app, ["run", str(sent), *FEW]).exception, UserError)
    assert not Path("ran").exists()
    assert CliRunner().invoke(app, ["run", str(sent), "--allow-import", "mine.py:Mine", *FEW]).exit_code == 0
    assert Path("ran").exists()


def test_code_that_the_user_gives_needs_no_other_word(sent: Path) -> None:
    assert CliRunner().invoke(app, ["run", "mine.py:Mine", *FEW]).exit_code == 0
    sent.write_text('strategy = "fedasync"\nmodel = "evil.py:model"\n')
    assert read_experiment(sent, {}, {"model": "mine.py:model"}).model == "mine.py:model"


def test_data_in_a_file_need_no_allowance(sent: Path) -> None:
    sent.write_text('strategy = "fedasync"\ndata = "some:where.npz"\n')
    assert read_experiment(sent, {}, {}).data == "some:where.npz"


@pytest.mark.parametrize("key", ["out", "include", "allow_import", "imports"])
def test_no_key_of_the_file_says_where_to_write_or_what_to_include(sent: Path, key: str) -> None:
    sent.write_text(f'strategy = "fedasync"\n{key} = "/tmp/elsewhere"\n')
    with pytest.raises(UserError, match="Unknown setting"):
        read_experiment(sent, {}, {})


def test_a_run_writes_only_below_its_directory(sent: Path, tmp_path: Path) -> None:
    sent.write_text('strategy = "fedasync"\ndata = "digits"\nclients = 4\nupdates = 4\nworkers = 1\n')
    before = set(tmp_path.rglob("*"))
    assert CliRunner().invoke(app, ["run", str(sent), "--quiet", "--out", "out"]).exit_code == 0
    assert {path.relative_to(tmp_path).parts[0] for path in set(tmp_path.rglob("*")) - before} == {"out"}
