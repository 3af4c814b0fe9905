"""To which cluster a client belongs, by what it hands in (EchoPFL, section 4.2): four answers with one interface."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.rows import l1
from polytempo.strategies.parts.clusters import Clusters
from polytempo.strategies.parts.cosines import cosine, norm
from polytempo.strategies.parts.soft_labels import SOFT_LABELS, divergence, members_soft_label, soft_label_in

Rule = Literal["l1", "cosine", "kl", "loss"]


@dataclass(frozen=True, slots=True)
class Assignment(ABC):
    """The nearest cluster; on a tie, the one that the client is in."""

    clusters: Clusters
    initial: Tensor
    soft_labels: Mapping[int, np.ndarray]
    """Client -> its last soft label."""

    questions: ClassVar[tuple[str, ...]] = ()
    """What clients are asked for it."""

    @abstractmethod
    def distance(self, update: Update, cluster: int) -> float:
        """How far the client is from a cluster."""

    def offered(self, client: int) -> tuple[int, ...]:
        """The clusters whose models the client is sent to choose from, its own first."""
        return (self.clusters.of(client),)

    def cluster_for(self, update: Update, offered: tuple[int, ...]) -> int:
        """The cluster that the client belongs to, after it was offered these."""
        own = self.clusters.of(update.client)
        distances = {cluster: self.distance(update, cluster) for cluster in self.clusters.branches}
        nearest = min(distances, key=lambda cluster: distances[cluster])
        return nearest if distances[nearest] < distances[own] else own

    def _model(self, cluster: int) -> Tensor:
        return self.clusters.branches[cluster].weights


class ByL1(Assignment):
    """``||u_i - v_c||_1`` (Eq. 1)"""

    def distance(self, update: Update, cluster: int) -> float:
        return l1(update.own.weights, self._model(cluster))


class ByCosine(Assignment):
    """``-cos(u_i - v_0, v_c - v_0)``: the ways from the initial model."""

    def distance(self, update: Update, cluster: int) -> float:
        own, theirs = update.own.weights - self.initial, self._model(cluster) - self.initial
        return -cosine(own, theirs, norm(own) * norm(theirs))


class ByKL(Assignment):
    """The divergence of the client's soft label from the mean of the cluster's other members."""

    questions = (SOFT_LABELS,)

    def distance(self, update: Update, cluster: int) -> float:
        label = soft_label_in(update.answers)
        label = self.soft_labels.get(update.client) if label is None else label
        members = self.clusters.members[cluster]
        return divergence(label, members_soft_label(self.soft_labels, members, but=update.client))


class ByLoss(ByL1):
    """The cluster whose model has the lowest loss on the client's data: the client gets all of them and chooses. One
    that did not choose is assigned by L1."""

    def offered(self, client: int) -> tuple[int, ...]:
        own = self.clusters.of(client)
        return (own, *(cluster for cluster in self.clusters.branches if cluster != own))

    def cluster_for(self, update: Update, offered: tuple[int, ...]) -> int:
        if update.chosen is None:
            return super().cluster_for(update, offered)
        chosen, has_cluster = offered[update.chosen], update.client in self.clusters.home
        stays = (has_cluster and update.chosen == 0) or chosen not in self.clusters.branches
        return self.clusters.of(update.client) if stays else chosen


ASSIGNMENTS: Mapping[Rule, type[Assignment]] = {"l1": ByL1, "cosine": ByCosine, "kl": ByKL, "loss": ByLoss}
