"""Regression and several labels per sample: learnt, stopped by, compared, and refused where they cannot be."""

import json

import numpy as np
import pytest
import torch

from polytempo import simulate
from polytempo.core.errors import UserError
from polytempo.learn.goals import Goal, absolute
from polytempo.learn.metrics import MSE, Metric

RNG = np.random.default_rng(5)
X = RNG.normal(size=(200, 4)).astype(np.float32)
Y = X @ np.array([2.0, -1.0, 0.5, 0.0]) + 3
TAGS = (X[:, :3] > 0).astype(int)
SMALL = {"clients": 4, "partition": "iid", "lr": 0.05, "seed": 2, "goal": "regression"}


def test_regression_learns_and_is_judged_by_its_error():
    run = simulate("fedavg", data=(X, Y), updates=80, model=torch.nn.Linear(4, 1), **SMALL)
    errors = run.over_evaluations("accuracy_used")
    assert errors[-1] < 0.05 < errors[0]
    assert run.config["resolved"]["metric"] == {"name": "mae", "higher_is_better": False, "share": False}
    assert run.used.are_losses
    own = run.used.client(0)
    assert own.mean() == pytest.approx(run.final_per_client("used")[0], rel=1e-5)


@pytest.mark.parametrize("shape", [(200,), (200, 1)])
def test_labels_may_be_a_column(shape):
    run = simulate("fedasync", data=(X, Y.reshape(shape)), updates=8, **SMALL)
    assert run.digest == simulate("fedasync", data=(X, Y), updates=8, **SMALL).digest


def test_several_numbers_and_several_labels_per_sample():
    two = simulate("fedasync", data=(X, np.stack([Y, -Y], 1)), updates=8, **SMALL)
    assert two.accuracy > 0
    tagged = simulate("concerto", data=(X, TAGS), updates=120, **SMALL | {"goal": "multi-label", "lr": 0.5})
    assert tagged.accuracy_used > 0.8
    assert tagged.config["resolved"]["metric"]["name"] == "f1"


def test_a_target_is_reached_from_above():
    run = simulate("fedavg", data=(X, Y), target=0.5, model=torch.nn.Linear(4, 1), **SMALL)
    errors = run.over_evaluations("accuracy_used")
    assert errors[-1] <= 0.5 < errors[:-1].min()
    assert run.time_to_target == run.virtual_time


def test_patience_waits_for_a_lower_error():
    same = Metric(name="same", per_sample=lambda _, y: torch.ones(len(y)), higher_is_better=False, share=False)
    waits = simulate("fedavg", data=(X, Y), updates=40, patience=2, metric=same, **SMALL)
    learning = simulate("fedavg", data=(X, Y), updates=40, patience=2, **SMALL | {"lr": 0.01})
    assert (len(waits.evaluations), len(learning.evaluations)) == (3, 11)


def test_loss_and_metric_by_name_and_a_goal_of_ones_own_are_the_same():
    named = simulate("fedasync", data=(X, Y), loss="mae", metric="mse", updates=8, **SMALL)
    goal = Goal(name="mine", labels="numbers", loss=absolute, metric=MSE)
    assert simulate("fedasync", data=(X, Y), updates=8, **SMALL | {"goal": goal}).digest == named.digest


def test_a_metric_with_a_direction_of_its_own():
    worst = Metric(name="worst", per_sample=lambda out, y: (out[:, 0] - y).abs(), higher_is_better=False, share=False)
    run = simulate("fedasync", data=(X, Y), metric=worst, updates=8, **SMALL)
    assert run.digest == simulate("fedasync", data=(X, Y), updates=8, **SMALL).digest
    assert run.config["metric"].startswith("worst #")


@pytest.mark.parametrize("suffix", ["npz", "csv"])
def test_files_hold_numbers_as_labels(tmp_path, suffix):
    path = tmp_path / f"own.{suffix}"
    if suffix == "npz":
        np.savez(path, x=X, y=Y)
    else:
        np.savetxt(path, np.column_stack([X, Y]), delimiter=",", fmt="%.17g")
    assert simulate("fedasync", data=path, updates=8, **SMALL).digest == (
        simulate("fedasync", data=(X, Y), updates=8, **SMALL).digest
    )


def test_a_run_with_a_goal_goes_on_with_the_same_goal_only(tmp_path):
    simulate("fedasync", data=(X, Y), updates=8, out=tmp_path, **SMALL)
    assert json.loads((tmp_path / "config.json").read_text())["goal"] == "regression"
    with pytest.raises(UserError, match="metric is None there, 'mse' here"):
        simulate("fedasync", data=(X, Y), updates=8, out=tmp_path, metric="mse", **SMALL)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"partition": "dirichlet:0.1"},
            "Partition dirichlet:0.1 goes by classes, and labels here are numbers. Take iid",
        ),
        ({"proxies": 5}, "A strategy with proxy sets needs one class per sample"),
        ({"drift": [{"kind": "swap", "labels": [[0, 1]], "at": 5}]}, "A drift that swaps labels needs one class"),
        ({"strategy": "echopfl"}, "it has no soft labels"),
        ({"data": "digits"}, "The labels of digits are classes, which do not fit the goal regression"),
        ({"goal": "classification"}, "labels are not whole numbers or names (for regression, set the goal)"),
        ({"goal": "multi-label"}, "y has shape (200,). With several labels it is samples x labels, each 0 or 1"),
        ({"goal": "multi-label", "data": (X, TAGS * 2)}, "y holds 2. With several labels each is 0 or 1"),
        ({"goal": "regresion"}, "Unknown goal 'regresion'. Did you mean 'regression'?"),
        ({"goal": 3}, "goal is int. Expected a name or a Goal"),
        ({"metric": "accuracy"}, "labels of the goal regression are no classes. Take mae"),
        ({"metric": "mea"}, "Unknown metric 'mea'"),
        ({"model": torch.nn.Linear(4, 2)}, "outputs have shape"),
        ({"data": (X, np.where(Y > 3, np.inf, Y))}, "labels are float64, not finite numbers"),
    ],
)
def test_what_does_not_fit_the_goal_is_refused(given, message):
    with pytest.raises(UserError) as raised:
        simulate(**{"strategy": "fedasync", "data": (X, Y), "updates": 4, **SMALL, **given})
    assert message in str(raised.value)
