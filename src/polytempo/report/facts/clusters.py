"""The clusters of a run as a report shows them: which of them over time, who was in them, how well they fit."""

from dataclasses import dataclass

import numpy as np

from polytempo.report.facts.choosing import evenly
from polytempo.report.facts.contenders import Contender
from polytempo.report.facts.courses import POINTS
from polytempo.report.facts.lineage import ClusterLife, groups_at, lineage
from polytempo.report.run import Run

LINES = 12  # clusters that can be told apart over time


def share_compared(similarity: np.ndarray) -> float:
    """The share of all pairs of clients that a method compared."""
    known = ~np.isnan(similarity[np.triu_indices(len(similarity), k=1)])
    return float(known.mean()) if len(known) else 0.0


def has_fit(contender: Contender) -> bool:
    """Has the contender clusters, in a world whose true groups are known?"""
    return any(run.has_clusters() and not np.isnan(run.over_evaluations("purity")).all() for run in contender.runs)


def clusters_over_time(run: Run) -> dict[int, ClusterLife]:
    """The clusters that are shown over time: all, or those that did not split, or those that there are at the end, or
    none where these are too many too."""
    family = lineage(run)
    leaves = {number: cluster for number, cluster in family.items() if not cluster.parts}
    at_end = run.per_client("per_client_cluster", -1)
    left = {number: cluster for number, cluster in leaves.items() if number in at_end}
    return next((shown for shown in (family, leaves, left) if len(shown) <= LINES), {})


@dataclass(frozen=True, eq=False)
class Memberships:
    """Where everybody was, at the times that are drawn: the cluster and the true group of each client (times x
    clients)."""

    times: np.ndarray
    cluster_of: np.ndarray
    groups: np.ndarray

    def sizes(self, cluster: int) -> np.ndarray:
        return np.sum(self.cluster_of == cluster, axis=1)

    def members(self, cluster: int, at: int) -> np.ndarray:
        return np.flatnonzero(self.cluster_of[at] == cluster)


def memberships(run: Run) -> Memberships:
    """Who was where at as many evaluations as a figure shows."""
    rows = evenly(len(run.evaluations), POINTS)
    times = run.over_evaluations("time")[rows]
    cluster_of = np.array([run.per_client("per_client_cluster", i) for i in rows]).astype(int)
    return Memberships(times, cluster_of, np.array([groups_at(run, time) for time in times]))
