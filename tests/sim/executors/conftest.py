"""One Ray cluster for all tests that need one, and no test that waits for ever."""

import signal
from collections.abc import Iterator

import pytest

from polytempo.sim.executors.cluster import connected
from support.clusters import Cluster, three_nodes

LONGEST = 900
"""Seconds. A test takes a few, and whoever waits that long waits for ever."""


@pytest.fixture(autouse=True)
def an_end() -> Iterator[None]:
    """A test that hangs fails, and says where: it must not hold up all others."""

    def give_up(number: int, frame: object) -> None:
        raise AssertionError(f"the test still waits after {LONGEST} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(LONGEST)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes, to which this process is connected: what starts there once serves all tests."""
    with three_nodes() as nodes, connected(nodes.word):
        yield nodes
