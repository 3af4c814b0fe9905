"""CFL: clustered federated learning (Sattler et al., 2020), Algorithm 2, and its asynchronous form.

The criterion and the bipartition are Sattler's; the bounds eps1 and eps2 are those that CASA (Liu et al., 2024,
appendix A.2) names for CFL and CFL-Async. Of the asynchronous form that paper says: decayed mixing
(``parts/mixing.py``), the most recent update of each client, the criterion with every update. Sattler hands a
newcomer down the tree of splits; here it goes to the cluster whose mean delta has the highest cosine with its own,
and the update that says so, trained from another cluster's model, is not averaged."""

from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from polytempo.core.events import Update
from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.parts.clusters import Clustered
from polytempo.strategies.parts.cosines import cosines, cosines_by_client, nearest, norm
from polytempo.strategies.parts.latest import LatestClustered
from polytempo.strategies.parts.rounds import Rounds, mean_delta


@strategy("cfl")
class CFL(Clustered, Rounds):
    """FedAvg in every cluster, which splits in two when its clients pull apart:
    ``||mean delta|| < eps1 and max ||delta|| > eps2``. Only a cluster whose members all took part in a round can."""

    eps1: float = Field(0.4, ge=0, description="a cluster may split when the norm of its mean delta is below this")
    eps2: float = Field(0.7, ge=0, description="and the norm of some member's delta is above this")

    def setup(self) -> None:
        self.deltas: dict[int, Tensor] = {}
        """Of the last round."""

    def aggregate(self, updates: Sequence[Update], now: float) -> None:
        self.deltas = {update.client: update.own.delta for update in updates}
        averaged = self.clusters.at_home(updates)
        means = {cluster: mean_delta(theirs) for cluster, theirs in averaged.items()}
        for cluster, mean in means.items():
            self.clusters.branches[cluster].step(mean)
        for client in [client for client in self.clusters.newcomers if client in self.deltas]:
            self.clusters.assign(client, nearest(self.deltas[client], means, otherwise=self.clusters.largest()))
        for cluster, theirs in averaged.items():
            members = self.clusters.splittable(cluster, [update.client for update in theirs])
            if members:
                norms = [norm(self.deltas[client]) for client in members]
                why = {"mean_norm": norm(means[cluster]), "max_norm": max(norms)}
                if incongruent(why, self.eps1, self.eps2):
                    self.clusters.split(cluster, by_complete_linkage(members, self.deltas), now, why)

    def forget(self, client: int) -> None:
        self.deltas.pop(client, None)
        super().forget(client)

    def similarity(self) -> np.ndarray | None:
        return cosines_by_client(self.deltas)


@strategy("cfl-async")
class CFLAsync(LatestClustered):
    """CFL without rounds: ``g_k <- lerp(g_k, w_i, alpha s(tau_i))``, and the criterion of CFL over the most recent
    delta of each member."""

    eps1: float = Field(0.4, ge=0, description="a cluster may split when the norm of its mean delta is below this")
    eps2: float = Field(1.0, ge=0, description="and the norm of some member's delta is above this")

    def compared(self, update: Update) -> Tensor:
        return update.own.delta

    def scale(self, update: Update, length: float) -> float:
        return update.samples

    def directions(self) -> Mapping[int, Tensor]:
        return self.latest.sums

    def split_if_due(self, cluster: int, members: Sequence[int], now: float) -> None:
        samples = sum(self.latest.scales[client] for client in members)
        mean_norm = norm(self.latest.sums[cluster]) / samples
        why = {"mean_norm": mean_norm, "max_norm": max(self.latest.norms[client] for client in members)}
        if incongruent(why, self.eps1, self.eps2):
            self.split(cluster, by_complete_linkage(members, self.latest.vectors), now, why)


def incongruent(norms: Mapping[str, float], eps1: float, eps2: float) -> bool:
    """Is the cluster near a stationary point that is none for some of its members?"""
    return norms["mean_norm"] < eps1 and norms["max_norm"] > eps2


def by_complete_linkage(clients: Sequence[int], deltas: Mapping[int, Tensor]) -> list[list[int]]:
    """Two parts such that the least cosine inside a part is high: complete linkage."""
    from sklearn.cluster import AgglomerativeClustering  # here, because it takes a second to import

    clustering = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="complete")
    labels = clustering.fit_predict(1 - cosines([deltas[client] for client in clients]))
    return [[client for client, label in zip(clients, labels, strict=True) if label == part] for part in (0, 1)]
