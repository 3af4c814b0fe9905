"""To which cluster a client belongs, by what it hands in (EchoPFL, section 4.2): four answers with one interface."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol

import numpy as np

from polytempo.core.events import Update
from polytempo.core.model.rows import l1
from polytempo.strategies.base.strategy import Setting
from polytempo.strategies.parts.clusters import Clusters
from polytempo.strategies.parts.cosines import cosine, norm
from polytempo.strategies.parts.soft_labels import SOFT_LABELS, divergence, members_soft_label, soft_label_in

Rule = Literal["l1", "cosine", "kl", "loss"]


class Known(Protocol):
    """What a server knows of clusters and clients; a strategy with these attributes is one."""

    clusters: Clusters
    setting: Setting
    soft_labels: dict[int, np.ndarray]
    """Client -> its last soft label."""


class Assignment(ABC):
    """The nearest cluster; on a tie, the one that the client is in."""

    questions: ClassVar[tuple[str, ...]] = ()
    """What clients are asked for it."""

    @abstractmethod
    def distance(self, known: Known, update: Update, cluster: int) -> float:
        """How far the client is from a cluster."""

    def offered(self, known: Known, client: int) -> tuple[int, ...]:
        """The clusters whose models the client is sent to choose from, its own first."""
        return (known.clusters.of(client),)

    def cluster_for(self, known: Known, update: Update, offered: tuple[int, ...]) -> int:
        """The cluster that the client belongs to, after it was offered these."""
        own = known.clusters.of(update.client)
        distances = {cluster: self.distance(known, update, cluster) for cluster in known.clusters.branches}
        nearest = min(distances, key=lambda cluster: distances[cluster])
        return nearest if distances[nearest] < distances[own] else own


class ByL1(Assignment):
    """``||u_i - v_c||_1`` (Eq. 1)"""

    def distance(self, known: Known, update: Update, cluster: int) -> float:
        return l1(update.own.weights, known.clusters.branches[cluster].weights)


class ByCosine(Assignment):
    """``-cos(u_i - v_0, v_c - v_0)``: the ways from the initial model."""

    def distance(self, known: Known, update: Update, cluster: int) -> float:
        initial = known.setting.initial
        own, theirs = update.own.weights - initial, known.clusters.branches[cluster].weights - initial
        return -cosine(own, theirs, norm(own) * norm(theirs))


class ByKL(Assignment):
    """The divergence of the client's soft label from the mean of the cluster's other members."""

    questions = (SOFT_LABELS,)

    def distance(self, known: Known, update: Update, cluster: int) -> float:
        label = soft_label_in(update.answers)
        label = known.soft_labels.get(update.client) if label is None else label
        members = known.clusters.members[cluster]
        return divergence(label, members_soft_label(known.soft_labels, members, but=update.client))


class ByLoss(ByL1):
    """The cluster whose model has the lowest loss on the client's data: the client gets all of them and chooses. One
    that did not choose is assigned by L1."""

    def offered(self, known: Known, client: int) -> tuple[int, ...]:
        own = known.clusters.of(client)
        return (own, *(cluster for cluster in known.clusters.branches if cluster != own))

    def cluster_for(self, known: Known, update: Update, offered: tuple[int, ...]) -> int:
        if update.chosen is None:
            return super().cluster_for(known, update, offered)
        chosen, has_cluster = offered[update.chosen], update.client in known.clusters.home
        stays = (has_cluster and update.chosen == 0) or chosen not in known.clusters.branches
        return known.clusters.of(update.client) if stays else chosen


ASSIGNMENTS: Mapping[Rule, Assignment] = {"l1": ByL1(), "cosine": ByCosine(), "kl": ByKL(), "loss": ByLoss()}
