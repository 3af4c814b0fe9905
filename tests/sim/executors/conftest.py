"""One Ray cluster for all tests that need one."""

from collections.abc import Iterator

import pytest

from polytempo.sim.executors.cluster import connected
from support.clusters import Cluster, three_nodes


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """Three nodes, to which this process is connected: what starts there once serves all tests."""
    with three_nodes() as nodes, connected(nodes.word):
        yield nodes
