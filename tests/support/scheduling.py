"""Which tests go to which process of pytest-xdist."""

from xdist.scheduler import LoadScopeScheduling

TOGETHER = "tests/sim/executors/"
"""They share a Ray cluster."""


class OneCluster(LoadScopeScheduling):  # type: ignore[misc]
    """One process gets all tests that need the cluster. Others go to whoever is free."""

    def _split_scope(self, nodeid: str) -> str:
        return TOGETHER if nodeid.startswith(TOGETHER) else nodeid
