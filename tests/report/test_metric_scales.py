"""Tables, reports and tests go by a metric's name and direction."""

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from polytempo import simulate
from polytempo.core.errors import UserError
from polytempo.learn.metrics import MAE, Scale
from polytempo.report.differences import differences, heading, titles
from polytempo.report.facts.alone import compared
from polytempo.report.page import write_report
from polytempo.report.table import comparison_rows

RNG = np.random.default_rng(7)
X = RNG.normal(size=(240, 3)).astype(np.float32)
Y = X.sum(axis=1) * np.where(np.arange(240) % 2, 1, -1)
CLIENTS = {i: (X[i::4], Y[i::4]) for i in range(4)}


@cache
def runs():
    given = {"data": CLIENTS, "goal": "regression", "lr": 0.02, "updates": 80}
    return [simulate(method, **given) for method in ("fedavg", "standalone")]


def test_the_lowest_error_is_the_best_of_a_column_that_names_it():
    fedavg, alone = comparison_rows(runs())
    assert fedavg.cells["served mae"].value > alone.cells["served mae"].value
    assert fedavg.cells["served mae"].text == f"{runs()[0].accuracy:.4g}"
    assert not any("%" in title for title in fedavg.cells if title.startswith(("served", "used", "own", "slowest")))


def test_over_seeds_the_lowest_error_stands_out_and_a_higher_one_is_worse():
    seeds = [replace(run, result={**run.result, "seed": seed}) for run in runs() for seed in range(6)]
    fedavg, alone = comparison_rows(seeds)
    assert (fedavg.cells["served mae"].best, alone.cells["served mae"].best) == (False, True)
    (row,) = differences(seeds)
    assert (row.contender, row.reference, row.verdict) == ("fedavg", "standalone", "worse")
    assert row.mean > 0
    assert titles(runs()[0].scale)[1] == "difference, mae"
    assert heading([row], runs()[0].scale) == "Used mae against that of standalone, which has the best mean"


def test_a_client_with_a_higher_error_is_worse_off():
    comparison = compared(*runs())
    assert comparison is not None
    assert comparison.counts() == (0, 0, 4)  # opposite halves: one model for all learns nothing
    assert (comparison.gains < 0).all()


def test_the_report_names_the_metric_and_nowhere_accuracy(tmp_path):
    page = write_report(runs(), tmp_path / "report.html", "regression").read_text()
    text = re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL)
    assert "Mae is the mean over clients of the mae" in text
    assert "Lower is better." in text
    assert "ccura" not in text
    assert runs()[0].summary().startswith("fedavg, seed 0: mae ")
    assert runs()[0].scale == Scale("mae", False, False)


def test_frames_name_the_metric():
    assert {"mae", "mae_used", "mae_std"} <= set(runs()[0].frame())
    assert not any("accuracy" in name for name in runs()[0].frame())


def test_runs_with_different_metrics_are_not_put_side_by_side():
    other = simulate("fedavg", data=CLIENTS, goal="regression", metric="mse", updates=4)
    with pytest.raises(UserError, match=r"The runs have different metrics \(mae, mse\)"):
        comparison_rows([*runs(), other])


def test_a_share_is_named_beside_its_percent_sign():
    assert (Scale().unit, Scale("f1").unit, MAE.unit) == ("%", "f1 %", "mae")
    assert (Scale("f1").axis, MAE.axis) == ("f1 (%)", "mae")
