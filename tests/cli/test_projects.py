"""``polytempo new`` makes a project whose test passes and whose README is true."""

import os
import re
import subprocess
import sys

import polytempo as package
from support import ROOT

FILES = {"README.md", "experiment.toml", "method.py", "model.py", "test_project.py"}


def test_a_new_project_passes_its_test_and_its_experiment_runs(polytempo, tmp_path, monkeypatch):
    code, out, err = polytempo("new", "mine")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1] == "Go on with: cd mine && pytest"
    assert {path.name for path in (tmp_path / "mine").iterdir()} == FILES
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path / "mine", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    monkeypatch.chdir(tmp_path / "mine")
    commands = re.findall(r"^    polytempo (.*)$", (tmp_path / "mine/README.md").read_text(), re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["run", "compare"]
    monkeypatch.setattr("polytempo.report.page.write_report", lambda runs, path, *more: path)  # it takes a while
    short = ("--updates", 5, "--quiet")
    for command in commands:
        more = ("--seeds", 1) if command.startswith("compare") else ()
        assert polytempo(*command.split(), *short, *more)[0] == 0
    assert package.Run.load(tmp_path / "mine/runs/first").strategy == "method.py:Ours"
    assert len(list((tmp_path / "mine/runs/compared").glob("*/result.json"))) == 3


def test_nothing_is_overwritten(polytempo, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/method.py").write_text("mine")
    code, _, err = polytempo("new", "mine")
    assert code == 2
    assert "Expected a new or an empty directory" in err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["method.py"]


def test_the_templates_are_as_tidy_as_the_package(polytempo, tmp_path):
    polytempo("new", "mine")
    for check in (["check", "--select", "E,F,I,UP"], ["format", "--check"]):
        command = [sys.executable, "-m", "ruff", *check, "--isolated", "--line-length", "120", "."]
        done = subprocess.run(command, cwd=tmp_path / "mine", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
