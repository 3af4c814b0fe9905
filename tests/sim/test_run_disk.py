"""A run and its disk: one run at a time in a directory, and a full disk is a message and no traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polytempo.core.errors import PassingError, UserError
from polytempo.sim import directory as directories
from polytempo.sim import run as running
from polytempo.sim.directory import LOCK, RESULT, is_finished
from polytempo.sim.experiment import make_experiment
from polytempo.sim.records import history as histories
from polytempo.sim.run import run_experiment
from polytempo_client.disk.locks import locked

pytestmark = pytest.mark.usefixtures("every_event")

EXPERIMENT = make_experiment(strategy="fedasync", partition="iid", clients=3, updates=6, eval_every=3, engine="eager")
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")


def test_a_second_run_into_the_same_directory_is_refused_while_the_first_goes_on(tmp_path: Path) -> None:
    refused: list[str] = []

    def begin_another(_: object) -> None:
        if not refused:
            with pytest.raises(PassingError) as caught:
                run_experiment(EXPERIMENT, tmp_path)
            refused.append(str(caught.value))

    first = run_experiment(EXPERIMENT, tmp_path, begin_another)
    assert refused == [f"Another process is writing a run to {tmp_path}. Wait until it ends, or choose another --out."]
    assert is_finished(EXPERIMENT, tmp_path)
    assert len(first.history.updates) == len((tmp_path / "updates.jsonl").read_text().splitlines()) == 6


def test_a_lock_file_that_was_left_behind_keeps_nobody_out(tmp_path: Path) -> None:
    with locked(tmp_path / LOCK):
        pass
    run_experiment(EXPERIMENT, tmp_path)
    assert is_finished(EXPERIMENT, tmp_path)


@FULL
@pytest.mark.parametrize("name", ["evaluations.jsonl", "updates.jsonl"])
def test_a_full_disk_is_one_message_and_the_run_can_begin_again(tmp_path: Path, name: str) -> None:
    (tmp_path / "evaluations.jsonl").touch()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("/dev/full")
    with pytest.raises(PassingError, match=f"Cannot write the run to {tmp_path}: No space left on device"):
        run_experiment(EXPERIMENT, tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).touch()
    run_experiment(EXPERIMENT, tmp_path)
    assert is_finished(EXPERIMENT, tmp_path)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
@pytest.mark.parametrize(
    ("module", "function"),
    [
        (running, "save"),
        (running, "write_models"),
        (running, "write_clusters"),
        (running, "write_json"),
        (directories, "write_json"),
        (histories.History, "flush"),
    ],
)
def test_whatever_does_not_fit_on_the_disk_is_told_in_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, function: str, code: int
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(module, function, fail)
        with pytest.raises(PassingError, match=rf"Cannot write the run to .*{os.strerror(code)}.*start it again"):
            run_experiment(EXPERIMENT, tmp_path / "run", checkpoint_seconds=3)
    assert not (tmp_path / "run" / RESULT).exists()
    run_experiment(EXPERIMENT, tmp_path / "run")
    assert is_finished(EXPERIMENT, tmp_path / "run")


def test_a_directory_that_cannot_be_made_is_an_error_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Choose another --out") as caught:
        run_experiment(EXPERIMENT, tmp_path / "file/run")
    assert not isinstance(caught.value, PassingError)


@FULL
def test_the_command_ends_with_75_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "evaluations.jsonl").symlink_to("/dev/full")
    command = [sys.executable, "-m", "polytempo", "run", "fedasync", "--partition", "iid", "--updates", "3"]
    done = subprocess.run([*command, "--out", str(tmp_path), "--quiet"], capture_output=True, text=True, check=False)
    assert done.returncode == 75
    assert done.stderr.startswith("polytempo: Cannot write the run to")
    assert "Traceback" not in done.stderr
