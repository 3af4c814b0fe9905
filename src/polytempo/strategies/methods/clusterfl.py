"""ClusterFL, reconstructed: a similarity-aware federated learning system for human activity recognition (Ouyang et al.,
MobiSys 2021).

This is not the authors' method, and its row must not be read as ClusterFL's. In their code every client keeps a model
of its own; these are tied together by multi-task learning (ADMM) through a soft matrix of likenesses, which the server
makes of all models' outputs on data of its own. What is built here is what EchoPFL (sections 7.1 and 7.2.3) describes
and compares with: synchronous, clients are clustered by the similarity of their models' outputs, and a model is trained
in every cluster. This is the plainest method that fits:
outputs are the mean soft labels of the trained model over the client's own data, unlikeness is their symmetric KL
divergence, clusters are made by average linkage, and every model is FedAvg's, over its members. Clusters are made after
every fifth round: sooner, models may say too little, and clusters that begin wrong teach their members to stay (on
digits, one of four seeds ended with wrong clusters when they were made after every round, or every other).

Who is clustered is everybody that is there, by the last answer; who did not take part in the round stays where it was.
New clusters take the places of those with which they share most clients, so that a cluster goes on while its clients
stay together. A client without a usable answer stays where it is. A newcomer, and so everybody at first, trains from
the model of the largest cluster, and counts there until the next clustering finds its place."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from pydantic import Field

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.orders import Orders, Train
from polytempo.strategies.base.strategy import Setting, strategy
from polytempo.strategies.parts.clusters import Clustered
from polytempo.strategies.parts.rounds import Rounds, weighted_mean
from polytempo.strategies.parts.soft_labels import SOFT_LABELS, as_soft_label, comparable, divergences


@strategy("clusterfl")
class ClusterFL(Clustered, Rounds):
    """Reconstructed: by turns, cluster the clients by the KL divergence of their models' outputs, and train a model in
    each cluster: ``g_k <- sum_i n_i w_i / sum_i n_i`` over its members in the round."""

    reconstructed = True
    revision = 1

    k: int = Field(4, ge=1, description="number of clusters")
    recluster_every: int = Field(5, ge=1, description="rounds after which the clients are clustered (anew)")

    def first_branches(self, setting: Setting) -> Mapping[int, Branch]:
        return {number: Branch(setting.initial) for number in range(self.k)}

    def setup(self) -> None:
        self.round = 0
        self.soft_labels: dict[int, np.ndarray] = {}
        """The last usable answer of each client that is there."""

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self.clusters.branch(client), questions=(SOFT_LABELS,))

    def left(self, client: int, now: float) -> Orders:
        self.soft_labels.pop(client, None)
        return super().left(client, now)

    def aggregate(self, updates: Sequence[Update], now: float) -> None:
        self.round += 1
        there = [update for update in updates if update.client in self.participation.members]
        for update in there:
            answer = as_soft_label(update.answers.get(SOFT_LABELS))
            if answer is not None:
                self.soft_labels[update.client] = answer
        if self.round % self.recluster_every == 0 and self.soft_labels:
            self._recluster({update.client for update in there})
        trained: dict[int, list[Update]] = {}
        for update in updates:
            trained.setdefault(self.clusters.of(update.client), []).append(update)
        for cluster, theirs in trained.items():  # models, not deltas: who comes from elsewhere started elsewhere
            mean = weighted_mean((update.weights for update in theirs), [update.weight for update in theirs])
            self.clusters.branches[cluster].replace(mean)

    def _recluster(self, movable: Collection[int]) -> None:
        clients = comparable(self.soft_labels)
        parts = by_average_linkage(clients, divergences([self.soft_labels[client] for client in clients]), self.k)
        for cluster, part in parts_by_cluster(parts, self.clusters.home, list(self.clusters.branches)).items():
            for client in [client for client in part if client in movable]:
                self.clusters.assign(client, cluster)


def by_average_linkage(clients: Sequence[int], distances: np.ndarray, parts: int) -> list[list[int]]:
    """The clients in so many parts, or one each if they are fewer."""
    if len(clients) <= parts:
        return [[client] for client in clients]
    from sklearn.cluster import AgglomerativeClustering  # here, because it takes a second to import

    labels = AgglomerativeClustering(parts, metric="precomputed", linkage="average").fit_predict(distances)
    return [[client for client, label in zip(clients, labels, strict=True) if label == part] for part in range(parts)]


def parts_by_cluster(
    parts: Sequence[Sequence[int]], home: Mapping[int, int], clusters: Sequence[int]
) -> dict[int, list[int]]:
    """Which part goes on as which cluster: as many clients as possible stay at home."""
    from scipy.optimize import linear_sum_assignment  # here, because it takes long to import

    stay = [[sum(home.get(client) == cluster for client in part) for cluster in clusters] for part in parts]
    rows, columns = linear_sum_assignment(np.array(stay), maximize=True)
    return {clusters[column]: list(parts[row]) for row, column in zip(rows, columns, strict=True)}
