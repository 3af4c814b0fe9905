"""A run that evaluates a random sample of its clients: the same run otherwise, with the figures of the sample."""

import math
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from polytempo import Run, simulate
from polytempo.core.errors import UserError
from polytempo.report.facts.alone import compared
from polytempo.sim.experiment import make_experiment
from polytempo.sim.world import drawn

WORLD = {"clients": 12, "updates": 48, "steps": 2, "engine": "eager", "partition": "groups:2", "devices": "types"}
KINDS = ("served", "own", "used")


@cache
def whole(strategy: str = "concerto") -> Run:
    return simulate(strategy, **WORLD)


@cache
def sampled(strategy: str = "concerto") -> Run:
    return simulate(strategy, eval_clients=5, **WORLD)


@pytest.mark.parametrize("strategy", ["concerto", "casa"])
def test_the_clients_of_the_sample_have_the_scores_that_they_have_among_all(strategy: str) -> None:
    sample = sampled(strategy).evaluations[-1]["sample"]
    assert len(sample) == 5
    for kind in KINDS:
        one, other = sampled(strategy).final_per_client(kind), whole(strategy).final_per_client(kind)
        assert np.array_equal(one[sample], other[sample], equal_nan=True)
        assert np.isnan(np.delete(one, sample)).all()
    assert sampled(strategy).accuracy == pytest.approx(whole(strategy).final_per_client()[sample].mean())


def test_nothing_but_the_evaluation_is_another() -> None:
    assert sampled().update_log == whole().update_log
    assert sampled().marks == whole().marks
    for figure in ("idle_share", "clusters", "ari", "bytes_up"):
        assert sampled().value_of(figure) == whole().value_of(figure)


def test_the_sample_is_the_same_at_every_evaluation() -> None:
    first, *others = [row["sample"] for row in sampled().evaluations]
    assert len(others) > 1
    assert all(np.array_equal(first, other) for other in others)


def test_a_sample_of_all_is_no_sample() -> None:
    assert simulate("fedasync", eval_clients=12, **WORLD).evaluations[-1].get("sample") is None
    assert drawn(12, 12, seed=0) is None


def test_a_run_that_evaluates_all_has_the_settings_that_it_had_before() -> None:
    assert "eval_clients" not in make_experiment(strategy="fedasync").settings()
    assert make_experiment(strategy="fedasync", eval_clients=3).settings()["eval_clients"] == 3
    with pytest.raises(UserError, match="eval_clients"):
        make_experiment(strategy="fedasync", eval_clients=0)


def test_a_sampled_run_that_was_read_back_says_the_same(tmp_path: Path) -> None:
    run = simulate("concerto", eval_clients=5, out=tmp_path / "run", **WORLD)
    again = Run.load(tmp_path / "run")
    assert run.digest == sampled().digest
    for kind in KINDS:
        assert np.array_equal(again.final_per_client(kind), sampled().final_per_client(kind), equal_nan=True)
    assert again.standard_error() == run.standard_error()


def test_the_report_says_so_with_the_standard_error(tmp_path: Path) -> None:
    simulate("concerto", eval_clients=5, out=tmp_path / "run", **WORLD)
    page = (tmp_path / "run/report.html").read_text()
    used = sampled().final_per_client("used")
    error = float(np.nanstd(used, ddof=1)) * math.sqrt((1 - 5 / 12) / 5)
    assert sampled().standard_error() == pytest.approx(error)
    assert (
        "random sample of 5 of 12 clients, the same at every evaluation: the standard error of the used models' "
        in page
    )
    assert f"is at most {100 * error:.2g} %" in page
    assert whole().standard_error() is None


def test_only_clients_of_the_sample_are_compared_with_alone() -> None:
    comparison = compared(sampled("fedasync"), sampled("standalone"))
    assert comparison is not None
    assert comparison.clients.tolist() == sampled("fedasync").evaluations[-1]["sample"].tolist()
    assert comparison.left_out == 0
