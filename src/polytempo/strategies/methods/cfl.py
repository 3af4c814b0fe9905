"""CFL: clustered federated learning (Sattler et al., 2020), Algorithms 1 and 2, and its asynchronous form.

The criterion and the bipartition are those of Sattler's paper. We know no value of his for gamma_max: .5 is our choice.
The bounds eps1 and eps2 are those that CASA (Liu et al., 2024, appendix A.2) names for CFL and CFL-Async. His code
differs from the paper: it has no third condition, splits by complete linkage and waits 20 rounds. That two clients stay
together is from there. Of the asynchronous form CASA says: decayed mixing (``parts/mixing.py``), the most recent update
of each client, the criterion with every update. Here a cluster whose parts were too alike is looked at again when all
of its members could have handed in once more, since looking compares all pairs.
Sattler hands a newcomer down the tree of splits; here it goes to the cluster whose mean delta has the highest cosine
with its own, and the update that says so, trained from another cluster's model, is not averaged."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from polytempo.core.events import Update
from polytempo.strategies.base.strategy import parameters, strategy
from polytempo.strategies.parts.clusters import Clustered
from polytempo.strategies.parts.cosines import cosines, cosines_by_client, nearest, norm
from polytempo.strategies.parts.latest import LatestClustered
from polytempo.strategies.parts.rounds import Rounds, mean_delta


@parameters
class Incongruence(Clustered):
    """A cluster splits in two when it is near a stationary point that is none for some of its members, and the parts
    differ by more than noise explains: ``||mean delta|| < eps1 and max ||delta|| > eps2 and
    gamma_max < sqrt((1 - alpha) / 2)``, alpha the highest cosine across the parts."""

    eps1: float = Field(0.4, ge=0, description="a cluster may split when the norm of its mean delta is below this")
    eps2: float = Field(0.7, ge=0, description="and the norm of some member's delta is above this")
    gamma_max: float = Field(
        0.5, ge=0, le=1, description="and the highest cosine across its parts is below 1 - 2 gamma_max^2"
    )
    fewest_members: int = Field(3, ge=2, description="and it has at least so many members")

    def verdict(
        self, members: Sequence[int], deltas: Mapping[int, Tensor], mean_norm: float, max_norm: float
    ) -> tuple[list[list[int]], dict[str, float]]:
        """Two parts if a cluster has to split, else none; and the figures that decide it."""
        why = {"mean_norm": mean_norm, "max_norm": max_norm}
        if len(members) < self.fewest_members or mean_norm >= self.eps1 or max_norm <= self.eps2:
            return [], why
        parts, alpha = bipartition(cosines([deltas[client] for client in members]))
        why |= {"cross_cosine": alpha}
        if self.gamma_max >= math.sqrt(max(1 - alpha, 0) / 2):
            return [], why
        return [[members[index] for index in part] for part in parts], why


@strategy("cfl")
class CFL(Incongruence, Rounds):
    """FedAvg in every cluster, which splits in two when its clients pull apart: while its mean delta is short, some
    member's is long, and no two members of different parts are alike. Only a cluster whose members all took part in a
    round can."""

    revision = 1

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
                parts, why = self.verdict(members, self.deltas, norm(means[cluster]), max(norms))
                if parts:
                    self.clusters.split(cluster, parts, now, why)

    def forget(self, client: int) -> None:
        self.deltas.pop(client, None)
        super().forget(client)

    def similarity(self) -> np.ndarray | None:
        return cosines_by_client(self.deltas)


@strategy("cfl-async")
class CFLAsync(Incongruence, LatestClustered):
    """CFL without rounds: ``g_k <- lerp(g_k, w_i, alpha s(tau_i))``, and the criterion of CFL over the most recent
    delta of each member."""

    revision = 1

    eps2: float = Field(1.0, ge=0, description="and the norm of some member's delta is above this")

    def setup(self) -> None:
        super().setup()
        self.rests: dict[int, int] = {}
        """Cluster -> updates until it is looked at again."""

    def compared(self, update: Update) -> Tensor:
        return update.own.delta

    def scale(self, update: Update, length: float) -> float:
        return update.samples

    def directions(self) -> Mapping[int, Tensor]:
        return self.latest.sums

    def split_if_due(self, cluster: int, members: Sequence[int], now: float) -> None:
        rests = self.rests.pop(cluster, 0)
        if rests > 1:
            self.rests[cluster] = rests - 1
            return
        samples = sum(self.latest.scales[client] for client in members)
        longest = max(self.latest.norms[client] for client in members)
        parts, why = self.verdict(members, self.latest.vectors, norm(self.latest.sums[cluster]) / samples, longest)
        if parts:
            self.split(cluster, parts, now, why)
        elif "cross_cosine" in why:
            self.rests[cluster] = len(members)


def bipartition(cosines: np.ndarray) -> tuple[list[list[int]], float]:
    """The rows in two parts such that the highest cosine across them is as low as can be, and that cosine. Whoever is
    most alike is joined first, until two parts are left: single linkage."""
    from sklearn.cluster import AgglomerativeClustering  # here, because it takes a second to import

    linkage = AgglomerativeClustering(n_clusters=2, metric="precomputed", linkage="single")
    labels = linkage.fit_predict(1 - cosines)
    parts = [np.flatnonzero(labels == part).tolist() for part in (0, 1)]
    return parts, float(cosines[np.ix_(*parts)].max())
