"""Trackers write what happened with the real packages, and go on with a log without holes and without doubles."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from polytempo import simulate
from polytempo.cli import main as cli
from polytempo.core.errors import UserError
from polytempo.track.tracker import figures_of, final_figures
from polytempo.track.trackers import make_trackers
from support import wandb_files
from support.extras import extra
from support.watching import SMALL, cut_off, gone_on

STEPS = [0, 4, 8, 12, 16, 20, 24]


def test_figures_are_the_numbers_of_an_evaluation_under_flat_names():
    row = {"time": 2.0, "updates": 4, "accuracy": 0.5, "purity": None, "ari": float("nan"), "per_client": [1, 2]}
    nested = {"accuracy_per_cluster": {"0": 0.25, "7": 1}}
    expected = {"virtual_time": 2.0, "accuracy": 0.5, "accuracy_per_cluster/0": 0.25, "accuracy_per_cluster/7": 1.0}
    assert figures_of({**row, **nested}) == expected


def test_figures_of_another_metric_have_its_name(tmp_path, events):
    x = np.linspace(0, 1, 80)[:, None]
    given = {"data": (x, x[:, 0]), "goal": "regression", "partition": "iid", **SMALL}
    run = simulate("fedasync", out=tmp_path, track="tensorboard", **given)
    found = events(tmp_path / "tensorboard")
    assert points(found, "mae_used") == nearly(expected(run))
    assert not any("accuracy" in name for name in found.Tags()["scalars"])
    assert not any("accuracy" in name for name in final_figures(run))


def expected(run, name="accuracy_used"):
    return [(row["updates"], row[name]) for row in run.evaluations]


@pytest.fixture
def events():
    extra("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def read(directory: Path):
        accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
        accumulator.Reload()
        return accumulator

    return read


def points(accumulator, name="accuracy_used"):
    return [(event.step, event.value) for event in accumulator.Scalars(name)]


def nearly(pairs):
    return [(step, pytest.approx(value, abs=1e-6)) for step, value in pairs]


def test_tensorboard_has_every_evaluation_and_the_settings(tmp_path, events):
    run = simulate("casa", out=tmp_path, track="tensorboard", **SMALL)
    found = events(tmp_path / "tensorboard")
    assert points(found) == nearly(expected(run))
    assert points(found, "virtual_time") == nearly(expected(run, "time"))
    assert {"accuracy", "accuracy_slowest_fifth", "bytes_up", "clusters"} <= set(found.Tags()["scalars"])
    settings = found.Tensors("settings/text_summary")[0].tensor_proto.string_val[0].decode()
    assert '| strategy | `"casa"` |' in settings
    assert "| parameters.gamma |" in settings
    result = found.Tensors("result/text_summary")[0].tensor_proto.string_val[0].decode()
    assert f"| mean_staleness | `{run.mean_staleness}` |" in result


def test_a_run_that_is_begun_anew_replaces_its_tensorboard_log(tmp_path, events):
    for _ in range(2):
        simulate("fedasync", out=tmp_path, track="tensorboard", **SMALL)
    assert [step for step, _ in points(events(tmp_path / "tensorboard"))] == STEPS


def test_tensorboard_goes_on_without_holes_and_doubles_after_a_power_cut(tmp_path, events):
    cut_off(tmp_path, make_trackers(["tensorboard"]), update=13)  # nothing of it was flushed on purpose
    run = gone_on(tmp_path, make_trackers(["tensorboard"]))
    assert points(events(tmp_path / "tensorboard")) == nearly(expected(run))


def test_tensorboard_logs_once_what_no_checkpoint_has(tmp_path, events, monkeypatch):
    """The log is ahead of the checkpoint, and its last record is cut in the middle."""
    first = make_trackers(["tensorboard"])
    cut_off(tmp_path, first, update=13)
    first[0].on_evaluation({"updates": 16, "time": 9.0, "accuracy_used": 0.25})
    first[0]._writer.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    file.write_bytes(file.read_bytes()[:-5])
    run = gone_on(tmp_path, make_trackers(["tensorboard"]))
    found = events(tmp_path / "tensorboard")
    assert [step for step, _ in points(found)] == STEPS
    assert [step for step, _ in points(found, "virtual_time")] == STEPS
    assert points(found)[:4] == nearly(expected(run)[:4])


def test_tensorboard_needs_a_directory(events):
    with pytest.raises(UserError, match=r"Give out=DIR"):
        simulate("fedasync", track="tensorboard", **SMALL)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A store that is made once, which takes MLflow seconds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        found = extra("mlflow")
        before = found.get_tracking_uri()
        found.set_tracking_uri(f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/store.db")
        yield found
        found.set_tracking_uri(before)


@pytest.fixture
def mlflow(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", tmp_path.name)
    return store


def mlflow_runs(mlflow):
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name(os.environ["MLFLOW_EXPERIMENT_NAME"])
    return [(client, run) for run in client.search_runs([experiment.experiment_id])]


def history(client, run, name="accuracy_used"):
    return sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name))


def test_mlflow_has_settings_evaluations_figures_and_report(tmp_path, mlflow):
    run = simulate("casa", out=tmp_path / "run", track="mlflow", **SMALL)
    ((client, found),) = mlflow_runs(mlflow)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "casa-seed0"
    assert found.data.params["clients"] == "4"
    assert found.data.params["parameters.gamma"] == str(run.config["parameters"]["gamma"])
    assert history(client, found) == expected(run)
    assert found.data.metrics["mean_staleness"] == run.mean_staleness
    assert [file.path for file in client.list_artifacts(found.info.run_id)] == ["report.html"]
    assert mlflow.active_run() is None


def test_mlflow_goes_on_with_its_run_and_logs_nothing_twice(tmp_path, mlflow):
    cut_off(tmp_path / "run", make_trackers(["mlflow"]), update=13)
    ((client, found),) = mlflow_runs(mlflow)
    assert [step for step, _ in history(client, found)] == [0, 4, 8, 12]
    metric = mlflow.entities.Metric("accuracy_used", 0.25, 0, 16)  # logged after the last checkpoint
    client.log_batch(found.info.run_id, metrics=[metric])
    run = gone_on(tmp_path / "run", make_trackers(["mlflow"]))
    ((client, found),) = mlflow_runs(mlflow)
    assert found.info.status == "FINISHED"
    assert [step for step, _ in history(client, found)] == STEPS
    assert history(client, found, "virtual_time") == expected(run, "time")
    cut_off(tmp_path / "other", make_trackers(["mlflow"]), update=9)
    (tmp_path / "other/mlflow.json").write_text('{"run_id": "0123"}')
    with pytest.raises(UserError, match=r"other/mlflow.json names no run of sqlite"):
        gone_on(tmp_path / "other", make_trackers(["mlflow"]))


@pytest.fixture
def wandb(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.chdir(tmp_path)
    return extra("wandb")


def test_wandb_writes_its_files_offline_and_goes_on_with_the_same_run(tmp_path, wandb):
    tracked = make_trackers(["wandb"])
    cut_off(tmp_path, tracked, update=13)
    tracked[0].on_evaluation({"updates": 16, "time": 9.0, "accuracy_used": 0.25})  # no checkpoint has it
    tracked[0]._run.finish()  # what its own process does when this one is killed
    run = gone_on(tmp_path, make_trackers(["wandb"]))
    wandb.teardown()  # its process writes what it still has
    rows = wandb_files.history(tmp_path / "wandb")
    assert [row["_step"] for row in rows] == list(range(7))
    assert [row["updates"] for row in rows] == STEPS
    now = [(row["updates"], row["accuracy_used"]) for row in rows]
    assert [pair for pair in now if pair[0] != 16] == [pair for pair in expected(run) if pair[0] != 16]
    started = wandb_files.facts(tmp_path / "wandb", "run")
    assert {(one.run_id, one.project, one.display_name) for one in started} == {
        (json.loads((tmp_path / "wandb.json").read_text())["id"], "polytempo", "fedasync-seed0")
    }
    settings = {item.key: item.value_json for item in started[0].config.update}
    assert settings["clients"] == "4"
    summaries = [item for one in wandb_files.facts(tmp_path / "wandb", "summary") for item in one.update]
    assert f"{run.mean_staleness}" in {item.value_json for item in summaries if item.key == "mean_staleness"}


def test_wandb_logs_again_what_a_kill_has_cost(tmp_path, wandb):
    cut_off(tmp_path, make_trackers(["wandb"]), update=13)
    wandb.teardown()
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    whole = wandb_files.history(tmp_path / "wandb")
    content = file.read_bytes()
    while len(wandb_files.history(tmp_path / "wandb")) == len(whole):  # the last row is cut in the middle
        content = content[:-10]
        file.write_bytes(content)
    gone_on(tmp_path, make_trackers(["wandb"]))
    wandb.teardown()
    assert [row["updates"] for row in wandb_files.history(tmp_path / "wandb")] == STEPS


def test_the_tracks_of_a_comparison_lie_beside_its_runs(tmp_path, monkeypatch, events):
    arguments = ["compare", "fedasync", "fedavg", "--seeds", "1", "--track", "tensorboard", "--out", str(tmp_path)]
    small = ["--clients", "4", "--updates", "8", "--steps", "1", "--quiet", "--engine", "eager"]
    monkeypatch.setattr(sys, "argv", ["polytempo", *arguments, *small])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    for label in ("fedasync-seed0", "fedavg-seed0"):
        assert [step for step, _ in points(events(tmp_path / label / "tensorboard"))] == [0, 4, 8]


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(name, monkeypatch):
    for module in (name, "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"Tracking with {name} .* pip install 'polytempo\[{name}\]'"):
        simulate("fedasync", track=[name], **SMALL)


def test_final_figures_are_those_that_no_evaluation_has():
    found = final_figures(simulate("fedasync", **SMALL))
    assert {"mean_staleness", "wall_seconds", "refused"} <= found.keys()
    assert "accuracy_used" not in found
