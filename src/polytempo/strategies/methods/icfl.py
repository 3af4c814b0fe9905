"""ICFL, reconstructed: clustered federated learning in heterogeneous environment (Yan et al., 2023), and its
asynchronous form.

Known here only from its abstract and from how CASA (Liu et al., 2024, section 5.1 and appendix A.2) describes and
configures it. The abstract: an iterative framework; in one iteration the server performs incremental clustering, then
clustering; it looks at the average connectivity within each cluster, and finds the number of clusters. CASA:
synchronous, bi-partitioning and spectral clustering, similarity by the cosine of weights, a threshold alpha*(t) that
starts from .85 and rises with a factor of 4.0. This is the plainest method that fits. The mean cosine as the
connectivity, the shape of alpha*(t), its rate, and that newcomers are what incremental clustering is about are choices
made here. The asynchronous form has decayed mixing (``parts/mixing.py``) and the most recent model of each client, and
counts t in updates, at a hundredth of the rate. A newcomer goes to the cluster whose model has the highest cosine with
its own, and the update that says so, trained from another cluster's model, is not averaged."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import Field
from torch import Tensor

from polytempo.core.events import Update
from polytempo.strategies.base.strategy import Setting, parameters, strategy
from polytempo.strategies.parts.clusters import Clustered
from polytempo.strategies.parts.cosines import cosines, cosines_by_client, mean_cosine, nearest, unit_sum
from polytempo.strategies.parts.latest import LatestClustered
from polytempo.strategies.parts.rounds import Rounds, mean_delta
from polytempo.strategies.parts.similarity import affinity
from polytempo.strategies.parts.spectral import spectral_parts


@parameters
class RisingThreshold(Clustered):
    """Members of a cluster have to be the more alike the longer the training goes on."""

    start: float = Field(0.85, ge=-1, le=1, description="alpha*(0), the mean cosine below which a cluster splits first")
    factor: float = Field(4.0, ge=0, description="epsilon, how fast the threshold rises")
    rate: float = Field(0.01, ge=0, description="how fast the threshold rises per round")

    def begin(self, setting: Setting) -> None:
        self.t = 0
        """Rounds, or updates, so far."""
        super().begin(setting)

    def threshold(self, t: int) -> float:
        """``alpha*(t) = 1 - (1 - start) exp(-factor rate t)``"""
        return 1 - (1 - self.start) * math.exp(-self.factor * self.rate * t)

    def verdict(
        self, units: Tensor, members: Sequence[int], models: Mapping[int, Tensor]
    ) -> tuple[list[list[int]], dict[str, float]]:
        """Two parts if a cluster has to split, else none; and the figures that decide it. ``units`` is the sum of the
        members' unit vectors."""
        why = {"similarity": mean_cosine(units, len(members)), "threshold": self.threshold(self.t)}
        return (by_spectrum(members, models) if why["similarity"] < why["threshold"] else []), why

    def models(self) -> dict[int, Tensor]:
        """What stands for each cluster when a newcomer is assigned."""
        return {cluster: branch.weights for cluster, branch in self.clusters.branches.items()}


@strategy("icfl")
class ICFL(RisingThreshold, Rounds):
    """Reconstructed: FedAvg in every cluster, which splits in two when the mean cosine of its members' models is below
    a rising threshold alpha*(t). Only a cluster whose members all took part in a round can."""

    reconstructed = True

    def setup(self) -> None:
        self.last_round: dict[int, Tensor] = {}
        """The models of the last round."""

    def aggregate(self, updates: Sequence[Update], now: float) -> None:
        self.t += 1
        self.last_round = {update.client: update.own.weights for update in updates}
        averaged = self.clusters.at_home(updates)
        for cluster, theirs in averaged.items():
            self.clusters.branches[cluster].step(mean_delta(theirs))
        for client in [client for client in self.clusters.newcomers if client in self.last_round]:
            self.clusters.assign(client, nearest(self.last_round[client], self.models(), self.clusters.largest()))
        for cluster, theirs in averaged.items():
            members = self.clusters.splittable(cluster, [update.client for update in theirs])
            if members:
                units = unit_sum([self.last_round[client] for client in members])
                parts, why = self.verdict(units, members, self.last_round)
                if parts:
                    self.clusters.split(cluster, parts, now, why)

    def forget(self, client: int) -> None:
        self.last_round.pop(client, None)
        super().forget(client)

    def similarity(self) -> np.ndarray | None:
        return cosines_by_client(self.last_round)


@strategy("icfl-async")
class ICFLAsync(RisingThreshold, LatestClustered):
    """Reconstructed: ICFL without rounds, ``g_k <- lerp(g_k, w_i, alpha s(tau_i))``, and its criterion over the most
    recent model of each member."""

    reconstructed = True
    rate: float = Field(0.0001, ge=0, description="how fast the threshold rises per update")

    def compared(self, update: Update) -> Tensor:
        return update.own.weights

    def scale(self, update: Update, length: float) -> float:
        return 1 / length if length else 0.0

    def directions(self) -> Mapping[int, Tensor]:
        return self.models()

    def updated(self, update: Update, now: float) -> None:
        self.t += 1
        super().updated(update, now)

    def split_if_due(self, cluster: int, members: Sequence[int], now: float) -> None:
        parts, why = self.verdict(self.latest.sums[cluster], members, self.latest.vectors)
        if parts:
            self.split(cluster, parts, now, why)


def by_spectrum(clients: Sequence[int], models: Mapping[int, Tensor]) -> list[list[int]]:
    """Two parts by spectral clustering of the cosines, stretched from the lowest to the highest of the cluster."""
    if len(clients) == 2:
        return [[client] for client in clients]
    graph = affinity(cosines([models[client] for client in clients]), "weights")
    return [[clients[index] for index in part] for part in spectral_parts(graph, 2)]
