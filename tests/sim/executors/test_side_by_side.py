"""Whole runs side by side: in processes of this machine, or as tasks of a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from polytempo import compare
from polytempo.core.errors import UserError
from polytempo.core.state import load, save
from polytempo.sim.directory import CHECKPOINT
from polytempo.sim.executors import side_by_side
from polytempo.sim.experiment import make_experiment
from polytempo.sim.run import run_experiment
from support.clusters import Cluster
from support.killed_driver import At
from support.plugs import PulledPlugError, pulled_after

WORLD: dict[str, Any] = {"clients": 4, "updates": 16, "steps": 2, "engine": "eager"}
BOTH = ["fedasync", "fedavg"]


@pytest.fixture(params=["threads", "ray"])
def word(request: pytest.FixtureRequest) -> str:
    return "threads" if request.param == "threads" else str(request.getfixturevalue("cluster").word)


def test_runs_side_by_side_are_those_of_one_after_the_other_and_go_on_where_they_were(
    word: str, tmp_path: Path
) -> None:
    alone = compare(BOTH, seeds=1, **WORLD)
    cut_off(tmp_path / "fedavg-seed0")
    told: list[tuple[int, int]] = []
    both = compare(
        BOTH, seeds=1, jobs=2, executor=word, out=tmp_path, finished=lambda *at: told.append(at[:2]), **WORLD
    )
    assert [run.digest for run in both.runs] == [run.digest for run in alone.runs]
    assert both.runs[1].wall_seconds > 1000
    assert told == [(0, 2), (1, 2), (2, 2)]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fedasync-seed0", "fedavg-seed0", "report.html"]


def cut_off(directory: Path) -> None:
    """Leave a run there that was cut off after a thousand seconds."""
    experiment = make_experiment(strategy="fedavg", **WORLD)
    with pytest.raises(PulledPlugError):
        run_experiment(experiment, directory, checkpoint_seconds=0, watcher=At(8, pulled_after(1)))
    saved = load(directory / CHECKPOINT)
    save({**saved, "clock": (1000.0, 0.0, 0.0)}, directory / CHECKPOINT)


def test_callbacks_that_are_objects_stay_in_their_process(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Expected import paths"):
        compare(BOTH, jobs=2, out=tmp_path, callbacks=[object()], **WORLD)  # type: ignore[list-item]
    with pytest.raises(UserError, match="Expected out"):
        compare(BOTH, jobs=2, **WORLD)


def test_a_node_that_does_not_see_the_data_says_so(cluster: Cluster, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"The node 127\.0\.0\.1: .*mnist"):
        compare(BOTH, seeds=1, jobs=2, executor=cluster.word, out=tmp_path, data="mnist", data_dir=tmp_path)


def test_a_node_that_does_not_see_the_runs_says_so(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def elsewhere(directory: Path) -> Iterator[Path]:
        yield tmp_path / "not here" / "mark"

    monkeypatch.setattr(side_by_side, "_mark_in_sight", elsewhere)
    with pytest.raises(UserError, match=r"The node 127\.0\.0\.1 does not see .*, where the runs are kept"):
        compare(BOTH, seeds=1, jobs=2, executor=cluster.word, out=tmp_path, **WORLD)


def test_a_node_without_the_working_directory_says_so(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side.os, "getcwd", lambda: str(tmp_path / "not there"))
    with pytest.raises(UserError, match=r"The node 127\.0\.0\.1 cannot use the working directory"):
        compare(BOTH, seeds=1, jobs=2, executor=cluster.word, out=tmp_path, **WORLD)
