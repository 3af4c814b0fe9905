"""A sweep runs every trial with every seed once, and chooses by rows that are not test rows."""

import csv
import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polytempo.sweeps.running as running
from polytempo import simulate, sweep
from polytempo.core.errors import DivergenceError, UserError
from polytempo.learn.models import mlp
from polytempo.sim.run import run_experiment
from polytempo.strategies.methods.fedasync import FedAsync
from polytempo.sweeps.result import Scores, Sweep, Trial
from polytempo.sweeps.table import remarks, sweep_csv, sweep_table
from polytempo.world.data import load_dataset
from support.extras import extra
from support.runs import made_run

WORLD: dict[str, Any] = {"clients": 4, "updates": 8, "partition": "iid", "engine": "eager"}


def trial(value: float, validation: list[float], test: list[float], failure: str = "") -> Trial:
    pairs = enumerate(zip(validation, test, strict=True))
    runs = [made_run({}, {"seed": i, "accuracy_validation": v, "accuracy_used": t}) for i, (v, t) in pairs]
    return Trial({"lr": value}, tuple(runs), failure)


def found(*trials: Trial) -> Sweep:
    return Sweep("fedavg", ("lr",), (0, 1, 2), trials)


def test_scores_are_mean_deviation_and_students_interval() -> None:
    scores = trial(0.1, [0.7, 0.8, 0.9], [0.5] * 3).validation
    assert (scores.mean, scores.deviation, scores.seeds) == (pytest.approx(0.8), pytest.approx(0.1), 3)
    assert scores.mean - scores.low == pytest.approx(4.302653 * 0.1 / math.sqrt(3))
    one = Scores.of(trial(0.1, [0.7], [0.5]).runs, "accuracy_used")
    assert (one.mean, math.isnan(one.deviation), math.isnan(one.low)) == (0.5, True, True)
    wide = trial(0.1, [0.5, 1.0], [0.5] * 2).validation
    assert (wide.low, wide.high) == (0, 1)


def test_the_best_is_chosen_by_validation_rows_and_judged_by_test_rows() -> None:
    tried = found(trial(0.1, [0.7, 0.7, 0.7], [0.9] * 3), trial(0.2, [0.8, 0.8, 0.8], [0.6, 0.7, 0.8]))
    assert tried.best is tried.trials[1]
    assert "lr 0.2. Its test accuracy: 70.0 ± 10.0" in remarks(tried)[0]
    assert tried.figures()["best"]["test"]["mean"] == pytest.approx(0.7)
    assert "test" not in tried.figures()["trials"][0]


def test_the_best_has_the_lowest_value_where_lower_is_better() -> None:
    config = {"resolved": {"metric": {"name": "mae", "higher_is_better": False, "share": False}}}
    results = [{"seed": 0, "accuracy_validation": value, "accuracy_used": value / 2} for value in (30.0, 20.0)]
    trials = [Trial({"lr": i}, (made_run(config, result),)) for i, result in enumerate(results)]
    assert found(*trials).best is trials[1]
    assert "Its test mae: 10, 1 seed" in remarks(found(*trials))[0]


def test_a_table_that_is_too_wide_has_one_column_for_all_names() -> None:
    names = tuple(f"a_rather_long_name_{i}" for i in range(4))
    tried = Sweep("fedavg", names, (0,), (Trial(dict.fromkeys(names, 0.5), trial(0, [0.5], [0.5]).runs),))
    assert [column.header for column in sweep_table(tried, 200).columns][:2] == [
        "a rather long name 0",
        "a rather long name 1",
    ]
    assert [column.header for column in sweep_table(tried, 80).columns] == [
        "trial",
        "validation %",
        "deviation",
        "95 % interval",
        "seeds",
    ]


def test_a_sweep_as_csv_has_full_numbers_and_the_test_score_of_the_best_alone() -> None:
    tried = found(trial(0.1, [0.7, 0.7, 0.7], [0.9] * 3), trial(0.2, [0.8, 0.8, 0.8], [0.6, 0.7, 0.8], "Diverged"))
    other, best = csv.DictReader(io.StringIO(sweep_csv(tried)))
    assert (other["lr"], other["best"], float(other["test"])) == ("0.1", "True", 0.9)
    assert float(other["mean"]) == pytest.approx(0.7)
    assert (best["lr"], best["mean"], best["seeds"], best["best"], best["test"]) == ("0.2", "", "0", "False", "")


def test_the_frame_of_a_sweep_has_a_row_per_trial() -> None:
    frame = found(trial(0.1, [0.7, 0.9], [0.5] * 2), trial(0.2, [0.2, 0.4], [0.6] * 2)).frame()
    assert list(frame) == ["lr", "mean", "deviation", "low", "high", "seeds", "best", "test"]
    assert (list(frame["lr"]), list(frame["best"]), frame["test"][0]) == ([0.1, 0.2], [True, False], 0.5)
    assert math.isnan(frame["test"][1])


def test_without_validation_rows_none_is_chosen() -> None:
    tried = sweep("fedasync", grid={"lr": [0.05, 0.1]}, seeds=1, validation_share=0, **WORLD)
    assert tried.best is None
    assert "Nothing is chosen" in remarks(tried)[0]


def test_a_trial_that_diverged_has_no_score() -> None:
    tried = found(trial(9.0, [0.99] * 3, [0.9] * 3, "Training diverges"), trial(0.2, [0.3] * 3, [0.3] * 3))
    assert tried.best is tried.trials[1]
    assert tried.figures()["trials"][0]["validation"]["mean"] is None


def test_each_run_is_that_of_simulate_with_the_same_settings() -> None:
    tried = sweep("fedasync", grid={"mixing": [0.2, 0.6]}, seeds=2, seed=3, **WORLD)
    assert [run.seed for run in tried.runs] == [3, 4, 3, 4]
    alone = simulate("fedasync", parameters={"mixing": 0.6}, seed=4, validation_share=0.2, **WORLD)
    assert tried.trials[1].runs[1].digest == alone.digest
    assert tried.trials[1].runs[1].accuracy_validation == alone.accuracy_validation


def test_finished_runs_are_not_run_again_and_a_larger_grid_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Path] = []

    def counting(experiment: Any, directory: Path) -> object:
        ran.append(directory)
        return run_experiment(experiment, directory)

    monkeypatch.setattr(running, "run_experiment", counting)
    first = sweep("fedasync", grid={"lr": [0.05], "mixing": [0.2, 0.6]}, seeds=2, out=tmp_path, **WORLD)
    assert len(ran) == 4
    again = sweep("fedasync", grid={"mixing": [0.2, 0.6], "lr": [0.05, 0.1]}, seeds=2, out=tmp_path, **WORLD)
    assert len(ran) == 8
    assert [path.parent.name for path in ran[4:]] == ["lr=0.1,mixing=0.2"] * 2 + ["lr=0.1,mixing=0.6"] * 2
    assert again.trials[0].runs[0].digest == first.trials[0].runs[0].digest
    (tmp_path / "lr=0.1,mixing=0.2/seed-1/result.json").unlink()
    sweep("fedasync", grid={"mixing": [0.2, 0.6], "lr": [0.05, 0.1]}, seeds=2, out=tmp_path, **WORLD)
    assert len(ran) == 9
    with pytest.raises(UserError, match="holds another run"):
        sweep("fedasync", grid={"lr": [0.05], "mixing": [0.2]}, seeds=2, out=tmp_path, batch_size=7, **WORLD)


class Own(FedAsync):
    """FedAsync under a name of one's own."""


def test_processes_give_the_same_figures_also_of_objects(tmp_path: Path) -> None:
    data = load_dataset("digits")
    given = WORLD | {"data": (data.x, data.y), "devices": [1, 2, 3, 4], "model": lambda inputs: mlp(inputs)}
    given |= {"partition": lambda labels, clients, rng: np.array_split(rng.permutation(len(labels)), clients)}
    plan: dict[str, Any] = {"grid": {"mixing": [0.2, 0.6]}, "seeds": 1}
    told: list[tuple[int, int]] = []
    here = sweep(Own, **plan, **given)
    there = sweep(Own, **plan, jobs=2, out=tmp_path, progress=lambda *at: told.append(at[:2]), **given)
    assert [run.digest for run in there.runs] == [run.digest for run in here.runs]
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert json.loads((tmp_path / "sweep.json").read_text()) == json.loads(json.dumps(here.figures()))


def test_training_that_diverges_fails_its_trial_and_not_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverging(experiment: Any, directory: Path) -> object:
        if experiment.lr > 1:
            raise DivergenceError("Training diverges.")
        return run_experiment(experiment, directory)

    monkeypatch.setattr(running, "run_experiment", diverging)
    tried = sweep("fedasync", grid={"lr": [9.0, 0.05]}, seeds=1, **WORLD)
    assert [one.failure for one in tried.trials] == ["Training diverges.", ""]
    assert tried.best is tried.trials[1]
    with pytest.raises(UserError, match=r"No trial of the sweep ended\. Training diverges"):
        sweep("fedasync", grid={"lr": [9.0]}, seeds=1, **WORLD)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "Nothing is varied"),
        ({"grid": {"lr": [0.1]}, "seeds": 0}, "seeds is 0"),
        ({"grid": {"lr": [0.1]}, "jobs": 1.5}, "jobs is 1.5"),
        ({"grid": {"lr": [0.1]}, "trials": 3}, "trials are for a search"),
        ({"ranges": {"lr": (0.1, 0.2)}}, "for a search"),
        ({"grid": {"lr": [0.1]}, "search": "random", "trials": 2}, "search is 'random'"),
        ({"ranges": {"lr": (0.1, 0.2)}, "search": "optuna"}, "needs the number of trials"),
        ({"grid": "lr=0.1"}, "grid is str. Expected {name: "),
        ({"grid": {"model": [mlp]}}, "The grid of model holds function mlp. Expected numbers, names or lists"),
        (
            {"grid": {"lr": [0.1]}, "ranges": {"lr": (0.1, 0.2)}, "search": "optuna", "trials": 1},
            "a list of values and",
        ),
    ],
)
def test_a_bad_plan_is_refused_before_anything_runs(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        sweep("fedasync", **given, **WORLD)


def test_a_search_without_optuna_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'polytempo\[optuna\]'"):
        sweep("fedasync", ranges={"lr": (0.01, 0.1)}, search="optuna", trials=1, seeds=1, **WORLD)


def test_a_search_repeats_and_goes_on(tmp_path: Path) -> None:
    extra("optuna")
    space: dict[str, Any] = {"ranges": {"lr": (0.01, 0.5, "log"), "epochs": (1, 3)}, "grid": {"mixing": [0.2, 0.6]}}
    first = sweep("fedasync", **space, search="optuna", trials=3, seeds=1, out=tmp_path, **WORLD)
    more = sweep("fedasync", **space, search="optuna", trials=5, seeds=1, out=tmp_path, **WORLD)
    tried = [one.words for one in more.trials]
    assert [one.words for one in first.trials] == tried[:3]
    assert len(set(tried)) == 5
    assert all(0.01 <= one.assigned["lr"] <= 0.5 and one.assigned["epochs"] in (1, 2, 3) for one in more.trials)
    with pytest.raises(UserError, match="chooses by validation rows"):
        sweep("fedasync", **space, search="optuna", trials=1, seeds=1, validation_share=0, **WORLD)


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_the_figure_of_a_sweep_is_saved(tmp_path: Path, ending: str) -> None:
    grid = [Trial({"lr": lr, "mixing": m}, trial(0, [lr + m], [0.5]).runs) for lr in (0.1, 0.2) for m in (0, 1)]
    Sweep("fedasync", ("lr", "mixing"), (0,), tuple(grid)).plot(tmp_path / f"map.{ending}")
    assert (tmp_path / f"map.{ending}").stat().st_size > 2000
    searched = Sweep("fedasync", ("lr", "mixing"), (0,), tuple(grid[:3]))
    assert len(searched.plot().axes) == 2
    with pytest.raises(UserError, match="cannot save a plot"):
        searched.plot(tmp_path / "map.docx")


def test_a_heat_map_shows_the_best_over_what_it_has_no_axis_for() -> None:
    values = [(0.1, 0, 1, 0.3), (0.1, 0, 2, 0.4), (0.1, 1, 1, 0.2), (0.1, 1, 2, 0.1)]
    tried = [Trial({"a": a, "b": b, "c": c}, trial(0, [score], [0.5]).runs) for a, b, c, score in values]
    axes = Sweep("fedasync", ("a", "b", "c"), (0,), tuple(tried)).plot().axes[0]
    assert (axes.get_ylabel(), axes.get_xlabel()) == ("b", "c")
    assert sorted(text.get_text() for text in axes.texts) == ["10.0", "20.0", "30.0", "40.0"]
