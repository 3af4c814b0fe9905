"""Records are made again and compared."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from polytempo.papers import Bench, Case, Column, Table
from polytempo.papers.bench import until_flat
from polytempo.papers.checking import Checked, check, sample_of
from polytempo.papers.measuring import Means, measure_table
from polytempo.papers.records import Record, Records, was_flat
from polytempo.sim.experiment import make_experiment
from support.runs import made_run

COLUMNS = (Column("accuracy", "accuracy %", scale=100), Column("train_seconds", "CPU", varies=True))
SETTINGS = {"data": "digits", "clients": 4, "updates": 8}
TABLE = Table("one", "One", "", SETTINGS, [Case("fedavg", {"strategy": "fedavg"})], COLUMNS)
BENCH = Bench("small", "A small one", "", [TABLE], {}, seeds=3)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Records:
    records = Records()
    means = Means(tmp_path_factory.mktemp("out") / "runs", None)
    measure_table(BENCH, TABLE, records, means, lambda _: None, lambda _: None)
    return records


def checked(known: Records, tmp_path: Path, **changed: Any) -> Checked:
    """One run made again; its record is changed before."""
    (sampled,) = sample_of(replace(BENCH, seeds=1), known, Random(0))
    return check(sampled._replace(record=replace(sampled.record, **changed)), known, Means(tmp_path / "runs", None))


def off_by(record: Record, difference: float) -> Mapping[str, float | None]:
    assert record.figures["accuracy"] is not None
    return {**record.figures, "accuracy": record.figures["accuracy"] + difference}


def test_a_sample_is_of_recorded_runs_alone(known: Records) -> None:
    assert len(sample_of(BENCH, known, Random(0), 2)) == 2
    assert len(sample_of(replace(BENCH, seeds=9), known, Random(0), 9)) == 3


def test_a_run_that_is_made_again_has_the_same_bits(known: Records, tmp_path: Path) -> None:
    found = checked(known, tmp_path)
    assert (found.same_versions, found.holds) == (True, True)
    assert found.line() == "one: fedavg, seed 0: the same to the last bit"
    assert found.again.figures["train_seconds"] is not None


def test_another_digest_or_figure_is_found(known: Records, tmp_path: Path) -> None:
    found = checked(known, tmp_path, digest="0" * 16, figures=off_by(known.all()[0], 1e-6))
    assert [words.split()[0] for words in found.beyond] == ["digest", "accuracy"]
    assert not found.holds


def test_with_other_versions_the_seeds_say_how_far_a_figure_may_be_off(known: Records, tmp_path: Path) -> None:
    near = checked(known, tmp_path / "near", versions={}, digest="0" * 16, figures=off_by(known.all()[0], 1e-3))
    assert (near.same_versions, near.holds, near.compared) == (False, True, 1)
    assert near.line().endswith("other versions, 1 figures within the noise of the seeds")
    far = checked(known, tmp_path / "far", versions={}, figures=off_by(known.all()[0], 5.0))
    assert not far.holds
    assert "more than" in far.line()


# Runs that were stopped because their curve was flat.


def flat(used: list[float], updates: int = 40, **settings: Any) -> bool:
    experiment = make_experiment(strategy="fedavg", **{**until_flat(100, 10), **settings})
    run = made_run({}, {"updates": updates, "virtual_time": 5.0}, [{"accuracy_used": one} for one in used])
    return was_flat(experiment, run)


def test_a_run_that_did_not_get_better_for_a_fifth_of_its_length_was_stopped() -> None:
    assert until_flat(100, 10) == {"updates": 100, "eval_every": 10, "patience": 2}
    assert flat([0.1, 0.5, 0.5, 0.4])
    assert not flat([0.1, 0.5, 0.5, 0.6])
    assert not flat([0.1, 0.5, 0.5, 0.4], updates=100)
    assert not flat([0.1, 0.5, 0.5, 0.4], time=5.0)
    assert not flat([0.1, 0.5, 0.5, 0.4], patience=None)
