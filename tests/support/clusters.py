"""Ray clusters for tests, on the loopback of this machine only."""

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

PRIVATE = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # it listens on the loopback
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(16),  # and keeps no token in the user's home
}
"""The environment of this process and its clusters, before Ray is imported."""


class Cluster:
    """Three nodes of a cluster, each with its own processes. The driver is at the first, which stays."""

    def __init__(self, directory: str) -> None:
        from ray.cluster_utils import Cluster as Nodes

        quick = {"health_check_period_ms": 500, "health_check_failure_threshold": 10}
        self._node = {"node_ip_address": "127.0.0.1", "num_cpus": 1, "object_store_memory": 100 << 20}
        first = {**self._node, "num_cpus": 2, "include_dashboard": False, "temp_dir": directory}
        self._nodes = Nodes(True, head_node_args={**first, "_system_config": quick})
        self._others = [self._nodes.add_node(**self._node) for _ in range(2)]

    @property
    def word(self) -> str:
        """Of the executor there."""
        return f"ray:{self._nodes.address}"

    def kill_a_node(self) -> None:
        """As a machine dies: at once, with all that runs on it."""
        self._nodes.remove_node(self._others.pop(), allow_graceful=False)

    def mend(self) -> None:
        """Have three nodes again."""
        while len(self._others) < 2:
            self._others.append(self._nodes.add_node(**self._node))

    def end(self) -> None:
        self._nodes.shutdown()


@contextmanager
def three_nodes() -> Iterator[Cluster]:
    """A cluster while the block runs. Sockets have short names only: it is in no directory of a test."""
    directory = tempfile.mkdtemp(prefix="ray-")
    cluster = Cluster(directory)
    try:
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(directory, ignore_errors=True)


def alive(process: int) -> bool:
    """Is there a process with this number?"""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
