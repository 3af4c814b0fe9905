"""An experiment file that somebody sent: it runs no code and writes nowhere else unless the user says so."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from polytempo.cli.main import app
from polytempo.core.errors import UserError
from polytempo.sim.experiment import read_experiment
from polytempo_client.imports import from_import_path

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


@pytest.mark.parametrize("named", ["mine.py:Mine", "./mine.py:Mine", "below/../mine.py:Mine", "linked.py:Mine"])
def test_another_way_to_the_same_file_is_the_same_code(sent: Path, tmp_path: Path, named: str) -> None:
    Path("below").mkdir()
    Path("linked.py").symlink_to("mine.py")
    sent.write_text(f'strategy = "{named}"\n')
    for allowed in ("mine.py:Mine", "below/../mine.py:Mine", f"{tmp_path}/mine.py:Mine"):
        assert read_experiment(sent, {}, {}, [allowed]).strategy == named
    for other in ("mine.py:Other", "below/mine.py:Mine", "other.py:Mine"):
        with pytest.raises(UserError, match="looked for from the working directory"):
            read_experiment(sent, {}, {}, [other])


@pytest.mark.parametrize("code", ["\\u0000.py:Mine", "loop.py:Mine", f"{'x' * 5000}.py:Mine"])
def test_a_path_that_no_file_can_have_is_refused_like_any_other(sent: Path, code: str) -> None:
    Path("loop.py").symlink_to("loop.py")
    sent.write_text(f'strategy = "{code}"\n')
    with pytest.raises(UserError, match="names code"):
        read_experiment(sent, {}, {}, ["mine.py:Mine"])


def test_an_allowance_that_nothing_needs_is_pointed_out(sent: Path) -> None:
    sent.write_text('strategy = "fedasync"\n')
    with pytest.warns(UserWarning, match=r"--allow-import foo\.py:x has no effect: sent\.toml does not name it"):
        read_experiment(sent, {}, {}, ["foo.py:x"])


def test_a_file_is_looked_for_from_the_working_directory(sent: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"there is no other.py in {tmp_path}, the working directory"):
        from_import_path("other.py:Mine", "strategy")


def test_code_that_the_user_gives_needs_no_other_word(sent: Path) -> None:
    assert CliRunner().invoke(app, ["run", "mine.py:Mine", *FEW]).exit_code == 0
    sent.write_text('strategy = "fedasync"\nmodel = "evil.py:model"\n')
    assert read_experiment(sent, {}, {"model": "mine.py:model"}).model == "mine.py:model"


def test_data_in_a_file_need_no_allowance(sent: Path) -> None:
    sent.write_text('strategy = "fedasync"\ndata = "some:where.npz"\n')
    assert read_experiment(sent, {}, {}).data == "some:where.npz"


@pytest.mark.parametrize("key", ["out", "include", "allow_import", "imports"])
def test_no_key_of_the_file_says_where_to_write_or_what_to_include(sent: Path, key: str) -> None:
    sent.write_text(f'strategy = "fedasync"\n{key} = "/elsewhere"\n')
    with pytest.raises(UserError, match="Unknown setting"):
        read_experiment(sent, {}, {})


def test_a_run_writes_only_below_its_directory(sent: Path, tmp_path: Path) -> None:
    sent.write_text('strategy = "fedasync"\ndata = "digits"\nclients = 4\nupdates = 4\nworkers = 1\n')
    before = set(tmp_path.rglob("*"))
    assert CliRunner().invoke(app, ["run", str(sent), "--quiet", "--out", "out"]).exit_code == 0
    assert {path.relative_to(tmp_path).parts[0] for path in set(tmp_path.rglob("*")) - before} == {"out"}
