"""Runs on a Ray cluster have the bits of runs on threads, whatever dies while they go on."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest

from polytempo.sim.directory import CHECKPOINT
from polytempo.sim.experiment import make_experiment
from polytempo.sim.run import run_experiment
from polytempo.strategies import strategies
from support import ROOT
from support.clusters import Cluster
from support.killed_driver import HALF, WORLD, At

FEW = ["fedasync", "echopfl", "concerto"]
"""One that sends each client a model of its own, one that refreshes, one whose clients remember."""
ALL = [*FEW, *(pytest.param(name, marks=pytest.mark.ray) for name in strategies if name not in FEW)]


@cache
def digest_on_threads(strategy: str) -> str:
    return digest(strategy, workers=1)


def digest(strategy: str, directory: Path | None = None, watcher: At | None = None, **settings: object) -> str:
    experiment = make_experiment(strategy=strategy, **{**WORLD, **settings})
    return str(run_experiment(experiment, directory, watcher=watcher).result["digest"])


@pytest.mark.parametrize("strategy", FEW)
def test_two_threads_give_the_bits_of_one(strategy: str) -> None:
    assert digest(strategy, workers=2) == digest_on_threads(strategy)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("strategy", ALL)
def test_a_cluster_gives_the_bits_of_threads(cluster: Cluster, strategy: str, workers: int) -> None:
    assert digest(strategy, executor=cluster.word, workers=workers) == digest_on_threads(strategy)


def test_runs_in_several_threads_share_a_cluster(cluster: Cluster) -> None:
    """Each wants all CPUs: those that come later begin when others end."""
    with ThreadPoolExecutor(len(FEW)) as threads:
        found = list(threads.map(lambda name: digest(name, executor=cluster.word, workers=4), FEW))
    assert found == list(map(digest_on_threads, FEW))


@pytest.fixture
def breakable(cluster: Cluster) -> Iterator[Cluster]:
    yield cluster
    cluster.mend()


@pytest.mark.parametrize("strategy", ALL)
def test_a_node_that_is_killed_in_the_middle_costs_no_bits(breakable: Cluster, strategy: str) -> None:
    killing = At(HALF, breakable.kill_a_node)
    found = digest(strategy, watcher=killing, executor=breakable.word, workers=4)
    assert killing.acted
    assert found == digest_on_threads(strategy)


def test_a_driver_that_is_killed_goes_on_at_a_new_cluster(cluster: Cluster, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "support.killed_driver", str(tmp_path), *FEW]
    with (tmp_path / "said").open("w") as said:  # what it has started may live on for a moment, and hold a pipe open
        killed = subprocess.run(command, cwd=ROOT / "tests", stdout=said, stderr=said, env=os.environ, check=False)
    assert (tmp_path / "said").read_text().split() == [digest_on_threads(FEW[0])]
    assert killed.returncode == -9
    for strategy in FEW:
        assert (tmp_path / strategy / CHECKPOINT).exists()
        assert digest(strategy, tmp_path / strategy, executor=cluster.word) == digest_on_threads(strategy)
