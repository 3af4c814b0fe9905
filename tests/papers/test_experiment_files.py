"""The experiment files that come with the repository: each can be read and runs, and is what it says."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytempo.api import simulate_experiment
from polytempo.papers.echopfl import SCENARIOS as SCENARIO_TABLES
from polytempo.papers.echopfl_drift import TWO_DAYS, TWO_DAYS_DEVICES
from polytempo.report.run import Run
from polytempo.sim.experiment import Experiment, make_experiment, read_experiment
from polytempo.world.data import load_dataset
from polytempo.world.devices import make_devices
from polytempo.world.partitions import make_federation
from support import ROOT

EXPERIMENTS = ROOT / "src/polytempo/papers/experiments"
FILES = sorted(EXPERIMENTS.glob("*.toml"))
SCENARIOS = [path for path in FILES if "scenario" in path.stem]
DRIFT = EXPERIMENTS / "echopfl-drift.toml"
SMALL = {"data": "digits", "model": "mlp", "updates": 30, "eval_every": 10, "workers": 1}


def read(path: Path, **settings: Any) -> Experiment:
    return read_experiment(path, {}, settings)


def small_run(path: Path, **settings: Any) -> Run:
    return simulate_experiment(read(path, **SMALL, **settings))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("ignore:.*changes of clients' data never happened")
def test_every_file_is_a_valid_experiment_and_runs(path: Path) -> None:
    read(path).check()
    assert small_run(path).updates == 30


def test_the_scenarios_are_those_of_the_table() -> None:
    found = {path.stem[-1]: (read(path).partition, read(path).devices) for path in SCENARIOS}
    even, uneven = "composition:0-9/0-9/0-9/0-9/0-9", "composition:0-3/0-3/0-1/0-1/0*1,1*3"
    equal, unequal = "types:D1*5", "types:D1*2,D2*2,D4"
    assert found == {"a": (even, equal), "b": (uneven, equal), "c": (even, unequal), "d": (uneven, unequal)}


def test_the_scenarios_differ_in_nothing_but_data_and_devices() -> None:
    shared = [read(path).model_dump(exclude={"partition", "devices"}) for path in SCENARIOS]
    assert all(settings == shared[0] for settings in shared)


def test_the_case_study_has_the_papers_devices_which_train_often_enough_to_recover() -> None:
    experiment = read(DRIFT)
    devices = make_devices(experiment.devices, 20, seed=0)
    assert {kind: len(clients) for kind, clients in devices.clients_by_kind().items()} == {
        "D4": 2,
        "D3": 4,
        "D2": 5,
        "D1": 3,
        "D5": 6,
    }
    assert experiment.time == 48 * 3600
    assert experiment.steps is not None
    rounds = experiment.time / (devices.think + experiment.steps * devices.seconds_per_step)
    assert 60 <= np.median(rounds) <= 120
    assert rounds.min() > 20


def test_people_change_their_minds_at_midnight_at_four_and_at_seven() -> None:
    experiment = read(DRIFT)
    federation = make_federation(load_dataset("digits"), experiment.partition, 20, seed=0, drifts=experiment.drift)
    moments, clients = zip(*federation.drift_times(), strict=True)
    assert moments == (0, 16 * 3600, (24 + 7) * 3600)
    assert [len(who) for who in clients] == [10, 5, 5]
    assert not set(clients[1]) & set(clients[2])


@pytest.mark.filterwarnings("ignore:.*changes of clients' data never happened")
def test_every_other_client_has_the_opposite_taste_from_the_beginning() -> None:
    drifts = [mark for mark in small_run(DRIFT).marks if mark["kind"] == "drift"]
    assert [(mark["time"], mark["client"]) for mark in drifts] == [(0.0, client) for client in range(1, 20, 2)]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_scenarios_are_those_of_the_benchmark(path: Path) -> None:
    _, settings = SCENARIO_TABLES[path.stem[-1]]
    assert read(path).settings() == make_experiment(strategy="echopfl", **settings).settings()


def test_the_case_study_is_that_of_the_benchmark() -> None:
    parameters = {"assignment": "loss"}
    same = make_experiment(strategy="echopfl", parameters=parameters, **TWO_DAYS, devices=read(DRIFT).devices)
    assert read(DRIFT).settings() == same.settings()
    assert Path(read(DRIFT).devices).read_text() == Path(TWO_DAYS_DEVICES).read_text()
