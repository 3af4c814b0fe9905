"""What a run leaves behind, and that a run that was killed ends as if it had not been."""

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from polytempo.core.errors import UserError
from polytempo.report.run import Run
from polytempo.sim.directory import CHECKPOINT, is_finished
from polytempo.sim.experiment import make_experiment
from polytempo.sim.records import history
from polytempo.sim.run import run_experiment
from support.plugs import PulledPlugError, pulled_after

SETTINGS = {
    "strategy": "fedbuff",
    "clients": 6,
    "updates": 60,
    "participation": "k:4",
    "devices": "exponential",
    "engine": "eager",
    "momentum": 0.5,
}


ROUNDS = {**SETTINGS, "strategy": "fedavg", "participation": "share:0.5"}
DIVERGING = {**SETTINGS, "strategy": "fedasync", "lr": 1e6}
CLUSTERS = {**SETTINGS, "strategy": "casa", "participation": "all", "devices": "slow:0.5x20"}
THE_PAPERS = {**CLUSTERS, "parameters": {"preset": "paper"}}


@pytest.mark.parametrize("settings", [SETTINGS, ROUNDS, DIVERGING, CLUSTERS, THE_PAPERS])
@pytest.mark.parametrize("kills", [[1], [5, 3, 9], [2] * 8])
def test_a_run_killed_anywhere_ends_bit_identical(tmp_path, every_event, settings, kills):
    experiment = make_experiment(**settings)
    whole = run_experiment(experiment, tmp_path / "whole").result
    for events in kills:
        with pytest.raises(PulledPlugError):
            run_experiment(experiment, tmp_path / "cut", pulled_after(events), checkpoint_seconds=0)
    resumed = run_experiment(experiment, tmp_path / "cut").result
    assert (whole["refused"] > 0) == (settings is DIVERGING)
    timing = {"wall_seconds", "train_seconds", "overhead_seconds"}
    assert {k: v for k, v in resumed.items() if k not in timing} == {k: v for k, v in whole.items() if k not in timing}
    for name in ("evaluations.jsonl", "updates.jsonl", "marks.jsonl"):
        assert (tmp_path / "cut" / name).read_text() == (tmp_path / "whole" / name).read_text()


STOPPED = {"strategy": "fedasync", "clients": 10, "updates": 200, "engine": "eager"}
SCRIPT = f"""
import itertools, sys
from pathlib import Path
from polytempo.sim import run
from polytempo.sim.experiment import make_experiment

ticks, events = itertools.count(), itertools.count(1)

def hold(_):
    if next(events) == 40:
        print("held", flush=True)
        sys.stdin.read()

run.time.perf_counter = lambda: float(next(ticks))  # a checkpoint after every event
run.run_experiment(make_experiment(**{STOPPED}), Path(sys.argv[1]), hold, checkpoint_seconds=0)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_a_run_whose_process_was_stopped_goes_on_in_another_and_ends_bit_identical(tmp_path, how):
    cut, pipe, experiment = tmp_path / "cut", subprocess.PIPE, make_experiment(**STOPPED)
    command = [sys.executable, "-c", SCRIPT, str(cut)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"held\n"
        process.send_signal(how)
        process.stdin.close()
        assert process.wait() == -how
    assert (cut / CHECKPOINT).exists()
    ends = [run_experiment(experiment, directory).result["digest"] for directory in (cut, tmp_path / "whole")]
    assert ends[0] == ends[1]


def test_a_run_directory_holds_config_metrics_models_and_no_checkpoint(tmp_path):
    done = run_experiment(make_experiment(**SETTINGS), tmp_path / "run")
    loaded = Run.load(tmp_path / "run")
    assert loaded.result == done.result == json.loads((tmp_path / "run/result.json").read_text())
    assert loaded.config["parameters"] == {"buffer_size": 10, "server_lr": 1.0, "staleness": "polynomial:0.5"}
    assert {"polytempo", "torch", "cpu"} <= loaded.config["versions"].keys()
    assert len(loaded.update_log) == loaded.updates == 60
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    with safe_open(tmp_path / "run/models.safetensors", "pt") as models:
        assert models.get_tensor("client_model").tolist() == [0] * 6
        assert models.get_tensor("0.1.weight").shape == torch.Size([100, 64])


@pytest.mark.parametrize("end", [{"updates": 60}, {"updates": None, "time": 600.0}])
def test_progress_grows_to_the_end_whatever_ends_the_run(every_event, end):
    shown = []
    run_experiment(make_experiment(**{**SETTINGS, **end}), progress=shown.append)
    shares = [standing.share for standing in shown]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.1
    assert 0.9 < shares[-1] <= 1


def test_a_run_begun_again_is_not_finished_until_it_is(tmp_path, every_event):
    experiment = make_experiment(**SETTINGS)
    run_experiment(experiment, tmp_path / "run")
    with pytest.raises(PulledPlugError):
        run_experiment(experiment, tmp_path / "run", pulled_after(5), checkpoint_seconds=math.inf)
    assert not is_finished(experiment, tmp_path / "run")


def test_rows_are_written_as_they_come_and_cut_back_to_the_checkpoint(tmp_path, every_event, monkeypatch):
    experiment, log = make_experiment(**SETTINGS), tmp_path / "cut/updates.jsonl"
    whole = run_experiment(experiment, tmp_path / "whole").result
    with pytest.raises(PulledPlugError):
        run_experiment(experiment, tmp_path / "cut", pulled_after(15), checkpoint_seconds=0)
    saved = len(log.read_text().splitlines())
    monkeypatch.setattr(history, "UNWRITTEN", 3)
    with pytest.raises(PulledPlugError):
        run_experiment(experiment, tmp_path / "cut", pulled_after(30), checkpoint_seconds=math.inf)
    assert len(log.read_text().splitlines()) > saved + 3
    assert run_experiment(experiment, tmp_path / "cut").result["digest"] == whole["digest"]
    assert log.read_text() == (tmp_path / "whole/updates.jsonl").read_text()


def test_lost_rows_are_noticed(tmp_path, every_event):
    experiment = make_experiment(**SETTINGS)
    with pytest.raises(PulledPlugError):
        run_experiment(experiment, tmp_path / "cut", pulled_after(9), checkpoint_seconds=0)
    (tmp_path / "cut/updates.jsonl").write_text("")
    with pytest.raises(UserError, match="lost rows"):
        run_experiment(experiment, tmp_path / "cut")


def test_a_changed_file_makes_another_run(tmp_path):
    devices = tmp_path / "devices.toml"
    devices.write_text("seconds_per_step = 1.0")
    experiment = make_experiment(**{**SETTINGS, "devices": str(devices)})
    run_experiment(experiment, tmp_path / "run")
    devices.write_text("seconds_per_step = 2.0")
    with pytest.raises(UserError, match="holds another run"):
        is_finished(experiment, tmp_path / "run")


@pytest.mark.parametrize("text", ["{}", "no json", "[]"])
def test_a_foreign_config_is_no_run(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match="holds no run"):
        run_experiment(make_experiment(**SETTINGS), tmp_path)


def test_another_run_is_never_overwritten(tmp_path):
    run_experiment(make_experiment(**SETTINGS), tmp_path / "run")
    with pytest.raises(UserError, match="holds another run"):
        run_experiment(make_experiment(**{**SETTINGS, "seed": 1}), tmp_path / "run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(UserError, match="holds no run"):
        run_experiment(make_experiment(**SETTINGS), tmp_path / "mine")


def test_a_finished_run_is_known_by_its_settings(tmp_path):
    experiment = make_experiment(**SETTINGS)
    assert not is_finished(experiment, tmp_path / "run")
    run_experiment(experiment, tmp_path / "run")
    assert is_finished(experiment, tmp_path / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_directory_is_an_error_in_plain_words(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="Choose another --out"):
        run_experiment(make_experiment(**SETTINGS), tmp_path / "run")


def test_a_file_in_the_way_is_an_error_in_plain_words(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Choose another --out"):
        run_experiment(make_experiment(**SETTINGS), Path(tmp_path / "file" / "run"))


def test_a_checkpoint_of_other_versions_is_not_continued(tmp_path, every_event):
    experiment = make_experiment(**SETTINGS)
    with pytest.raises(PulledPlugError):
        run_experiment(experiment, tmp_path / "cut", pulled_after(9), checkpoint_seconds=0)
    config = json.loads((tmp_path / "cut/config.json").read_text())
    config["versions"]["torch"] = "0.0"
    (tmp_path / "cut/config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="other package versions"):
        run_experiment(experiment, tmp_path / "cut")


def test_a_run_of_a_frozen_model_goes_on_with_the_same_frozen_weights_only(tmp_path, every_event, monkeypatch):
    experiment = make_experiment(**{**SETTINGS, "updates": 20, "model": "support.frozen:inside"})
    whole = run_experiment(experiment, tmp_path / "whole").result
    for directory in ("cut", "other"):
        with pytest.raises(PulledPlugError):
            run_experiment(experiment, tmp_path / directory, pulled_after(9), checkpoint_seconds=0)
    assert run_experiment(experiment, tmp_path / "cut").result.digest == whole.digest
    monkeypatch.setattr("support.frozen.SCALE", 2.0)
    with pytest.raises(UserError, match="other frozen weights"):
        run_experiment(experiment, tmp_path / "other")
