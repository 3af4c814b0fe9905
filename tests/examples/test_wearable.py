"""The wearers of examples/wearable take part for a short day, and operators see them."""

import re
import subprocess
import sys

import numpy as np

from support import ROOT

RUN = ROOT / "examples/wearable/run.py"


def wear(*options: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, RUN, *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def test_wearers_train_on_a_schedule_and_when_their_data_shift() -> None:
    done = wear("--wearers", 2, "--day", 3)
    assert (done.returncode, done.stderr) == (0, "")
    assert "operators: https://127.0.0.1:" in done.stdout
    halves = dict(re.findall(r"1 (on \w[\w ]*\w) +updates +([\d.]+) each +accuracy at last \d", done.stdout))
    assert set(halves) == {"on a schedule", "on battery"}
    assert all(float(updates) >= 1 for updates in halves.values())


def test_a_wearer_that_is_not_in_the_data_is_named(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x, y, users = rng.normal(size=(40, 9, 128)), rng.integers(6, size=40), rng.integers(2, size=40)
    np.savez(tmp_path / "har.npz", x=x, y=y, users=users)
    done = wear("--wearers", 3, "--data", tmp_path / "har.npz")
    assert done.returncode == 1
    assert done.stderr == "The data have no wearer 2: give --wearers up to 2.\n"
