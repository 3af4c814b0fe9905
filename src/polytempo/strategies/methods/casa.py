"""CASA: clustered federated learning with asynchronous clients (Liu et al., KDD 2024), and its ablations.

Two rules are ours, and ``preset="paper"`` is without them (docs/methods/clustering.md has why). It compares deltas, as
the default does: raw weights, which the paper names, are ``source="weights"``. A pair's cosines are
averaged by how far the two moved (``memory``): near the end of training single cosines are noise, and split groups. A
client that has never handed in is asked for an early report (``patience``): until then it is served the model of the
largest cluster, and splits wait for it.

Algorithm 2 puts an update into the buffers of members whose starts are near its own. A member that is not in training
has none; it counts as starting from the newest version, from which it will."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.orders import Orders, Report, Train
from polytempo.core.validation import OR_NONE
from polytempo.strategies.base.strategy import Presets, parameters, strategy
from polytempo.strategies.parts.asynchronous import Asynchronous
from polytempo.strategies.parts.buffers import Buffers, Fingerprint, within_budget
from polytempo.strategies.parts.clusters import Clustered
from polytempo.strategies.parts.cosines import cosine, nearest
from polytempo.strategies.parts.decay import Decay, bi_level, stale_after
from polytempo.strategies.parts.similarity import Similarity, affinity, coverage
from polytempo.strategies.parts.spectral import eigengap, spectral_parts

LOOK_AGAIN = 0.01
"""A cluster is looked at again when so large a share of its pairs has been compared since: fewer hardly move a
spectrum, and the eigenproblem stays rare in large clusters."""
ENTRIES_PER_CLIENT = 10
"""In all buffers together, unless the budget is given."""


@parameters
class DynamicClusters(Clustered, ABC):
    """Clusters that are found while they are trained (section 4.3); how much an update counts is up to ``decay``."""

    preset: Literal["ours", "paper"] = Field(
        "ours", description="paper: only the last cosine of a pair counts, and there are no early reports"
    )
    kappa: float = Field(0.001, gt=0, description="how fast Omega(t) = (e/2.8)^(kappa t) falls")
    gamma: float = Field(0.15, gt=0, description="a cluster splits when alpha_c < eigengap^gamma")
    source: Literal["delta", "weights"] = Field("delta", description="what is compared: local progress or raw weights")
    memory: float = Field(1.0, ge=0, le=1, description="weight of a pair's earlier cosines; 0: only the last counts")
    coverage: float = Field(0.9, ge=0, le=1, description="share of a cluster's pairs compared before it may split")
    budget: int | None = Field(None, ge=0, description="M, entries in all buffers (default: ten per client)")
    patience: Annotated[float | None, OR_NONE] = Field(
        1.0, gt=0, description="staleness, in r_c, at which a client's first update is asked for early, or none"
    )

    presets: ClassVar[Presets] = {"paper": {"memory": 0.0, "patience": None}}
    revision = 1

    def setup(self) -> None:
        self.t = 0
        self.similar = Similarity()
        self.buffers = Buffers()
        self.began = np.zeros(0, np.int64)
        """The version from which each client trains, -1 for a client that does not."""
        self.alpha = np.zeros(0)
        """The weight of each client's last update; 0 before the first, so that its buffer comes first."""
        self.fresh: dict[int, int] = {}
        """Pairs compared in each cluster since it was last looked at."""
        self.asked: dict[int, None] = {}
        """Clients that were asked to report and have not handed in since."""

    @abstractmethod
    def decay(self, members: int) -> Decay:
        """The decay now for a cluster with so many members."""

    # Events.

    def joined(self, client: int, now: float) -> Orders:
        self._make_room(client + 1)
        return super().joined(client, now)

    def left(self, client: int, now: float) -> Orders:
        self.began[client] = -1
        self.asked.pop(client, None)
        self.buffers.take(client)
        return super().left(client, now)

    def forget(self, client: int) -> None:
        self.buffers.keep((self.buffers.senders != client) & (self.buffers.owners != client))
        self.similar.forget(client)
        self.alpha[client] = 0
        super().forget(client)

    def order_for(self, client: int, now: float) -> Train:
        order = super().order_for(client, now)
        self.began[client] = order.version
        return order

    def updated(self, update: Update, now: float) -> Orders:
        """Algorithm 1: an asynchronous round t."""
        self.t += 1
        decay = self._place(update, now)  # lines 3 to 9
        self.aggregate(self.clusters.branch(update.client), update, decay, float(self.alpha[update.client]))  # line 11
        return self._ask_the_unheard(self.clusters.home[update.client], decay)

    def observed(self, update: Update, now: float) -> Orders:
        """Algorithm 1 without line 11, in the same round."""
        decay = self._place(update, now)
        return self._ask_the_unheard(self.clusters.home[update.client], decay)

    def _place(self, update: Update, now: float) -> Decay:
        """Compare the update with others, cluster, and buffer it; the decay in its cluster."""
        fingerprint, others = self._receive(update)  # line 3
        self._assign_newcomer(fingerprint, others)  # lines 4 to 6
        self._cluster(fingerprint, others, now)  # line 8
        decay = self._decay_of(update)
        self._offer(fingerprint, update.version, decay.stale_after)  # line 9
        return decay

    def aggregate(self, branch: Branch, update: Update, decay: Decay, alpha: float) -> None:
        """``g_k <- (1 - alpha_i) g_k + alpha_i w_i`` (Eq. 9)"""
        branch.mix(update.weights, alpha)

    def _receive(self, update: Update) -> tuple[Fingerprint, list[Fingerprint]]:
        """The client is not in training any more; what is compared of its update, and with what."""
        self.began[update.client] = -1
        self.asked.pop(update.client, None)
        return self._fingerprint(update), self.buffers.take(update.client)

    def _decay_of(self, update: Update) -> Decay:
        """The decay in the client's cluster, from which the client's alpha is noted."""
        decay = self.decay(len(self.clusters.members[self.clusters.home[update.client]]))
        self.alpha[update.client] = decay.client(self.tau(update))
        return decay

    def similarity(self) -> np.ndarray:
        clients = len(self.began)
        return self.similar.values[:clients, :clients]

    # Clustering.

    def branch_of(self, update: Update) -> int:
        if update.client in self.clusters.home:
            return self.clusters.home[update.client]
        return self._nearest(self._fingerprint(update), self.buffers.of(update.client))

    def _fingerprint(self, update: Update) -> Fingerprint:
        compared = update.own.delta if self.source == "delta" else update.own.weights
        return Fingerprint.of(update.client, compared, update.samples)

    def _assign_newcomer(self, fingerprint: Fingerprint, others: Sequence[Fingerprint]) -> None:
        if fingerprint.client not in self.clusters.home:
            self.clusters.assign(fingerprint.client, self._nearest(fingerprint, others))

    def _nearest(self, fingerprint: Fingerprint, others: Sequence[Fingerprint]) -> int:
        """Where a newcomer belongs: ``argmax_k cos(rep_k, w_i)``, rep_k of the members in its buffer (Eq. 15)."""
        reps: dict[int, Tensor] = {}
        for other in others:
            if other.client in self.clusters.home:
                rep = reps.setdefault(self.clusters.home[other.client], torch.zeros_like(other.vector))
                rep.add_(other.vector, alpha=other.samples)
        return nearest(fingerprint.vector, reps, otherwise=self.clusters.largest())

    def _cluster(self, fingerprint: Fingerprint, others: Sequence[Fingerprint], now: float) -> None:
        """``A_ij = A_ji = cos(w_i, w_j)`` for every model in the buffer (Eq. 10). Then the client's cluster splits, if
        that has become clear."""
        lengths = [fingerprint.norm * other.norm for other in others]
        cosines = [cosine(fingerprint.vector, other.vector, both) for other, both in zip(others, lengths, strict=True)]
        self.similar.compare(fingerprint.client, [other.client for other in others], cosines, lengths, self.memory)
        cluster = self.clusters.home[fingerprint.client]
        inside = sum(other.client in self.clusters.members[cluster] for other in others)
        self.fresh[cluster] = self.fresh.get(cluster, 0) + inside
        if inside:
            self._split_if_due(cluster, now)

    def _split_if_due(self, cluster: int, now: float) -> None:
        """Algorithm 3: into R parts, if the eigengap says R > 1 and the decay is small enough to trust it. Members that
        were never compared with anyone are newcomers from then on."""
        size = len(self.clusters.members[cluster])
        if size < 3 or self.fresh.get(cluster, 0) < max(1, LOOK_AGAIN * size * (size - 1) / 2):
            return
        self.fresh[cluster] = 0
        members = sorted(self.clusters.members[cluster])
        block = self.similar.block(members)
        if coverage(block) < self.coverage:
            return
        compared = (~np.isnan(block)).sum(1) > 1
        graph = affinity(block[np.ix_(compared, compared)], self.source)
        parts, gap = eigengap(graph)
        decay = self.decay(size).cluster
        if parts < 2 or decay >= gap**self.gamma:
            return
        found = spectral_parts(graph, parts)
        if len(found) < 2:
            return
        for client in np.array(members)[~compared].tolist():
            self.clusters.dismiss(client)
        placed = np.array(members)[compared]
        why = {"eigengap": gap, "decay": decay, "threshold": gap**self.gamma}
        self.clusters.split(cluster, [placed[part].tolist() for part in found], now, why)
        del self.fresh[cluster]
        self._keep_apart()

    def _keep_apart(self) -> None:
        """After a split every part keeps its own buffers; newcomers keep theirs whole."""
        home = np.full(len(self.began), -1)
        home[list(self.clusters.home)] = list(self.clusters.home.values())
        of_owners = home[self.buffers.owners]
        self.buffers.keep((of_owners == home[self.buffers.senders]) | (of_owners < 0))

    def _offer(self, fingerprint: Fingerprint, began: int, apart: float) -> None:
        """Algorithm 2: into the buffers of its cluster's other members, and of newcomers, unless the starts lie
        too far apart, as far as the budget goes."""
        cluster = self.clusters.home[fingerprint.client]
        members = np.array(list(self.clusters.members[cluster]), np.int64)
        starts = self.began[members]
        starts[starts < 0] = self.clusters.branches[cluster].version
        near = members[(np.abs(starts - began) < apart) & (members != fingerprint.client)]
        newcomers = np.array(list(self.clusters.newcomers), np.int64)
        self.buffers.offer(fingerprint, np.concatenate([near, newcomers]))
        budget = ENTRIES_PER_CLIENT * len(self.participation.members) if self.budget is None else self.budget
        if len(self.buffers) > budget:
            owners, senders = self.buffers.owners, self.buffers.senders
            self.buffers.keep(within_budget(budget, self.similar.compared(owners, senders), self.alpha[owners]))

    def _ask_the_unheard(self, cluster: int, decay: Decay) -> list[Report]:
        """Ask for what they have: those who never handed in, are served this cluster's model, and are staler than
        ``patience r_c``. A few steps show where a client belongs; mixed in, they count little (Eq. 7)."""
        if self.patience is None:
            return []
        oldest = self.clusters.branches[cluster].version - self.patience * decay.stale_after
        late = np.flatnonzero((self.alpha == 0) & (self.began >= 0) & (self.began < oldest)).tolist()
        unheard = [client for client in late if client not in self.asked and self.clusters.of(client) == cluster]
        self.asked.update(dict.fromkeys(unheard))
        return [Report(client) for client in unheard]

    def _make_room(self, clients: int) -> None:
        self.similar.make_room(clients)
        missing = clients - len(self.began)
        if missing > 0:
            self.began = np.concatenate([self.began, np.full(missing, -1)])
            self.alpha = np.concatenate([self.alpha, np.zeros(missing)])


@strategy("casa")
class Casa(DynamicClusters):
    """Clusters found and trained together: each update is compared with buffered ones of its time, its cluster splits
    where the eigengap outweighs the decay, and it is mixed in by bi-level decay: ``g_k <- lerp(g_k, w_i, alpha_i)``."""

    alpha0: float = Field(2.0, gt=0, le=2, description="basic decay; with more than 2 alpha could exceed 1")

    def decay(self, members: int) -> Decay:
        return bi_level(self.t, members, self.alpha0, self.kappa)


@strategy("casa-d")
class CasaD(DynamicClusters):
    """CASA without its bi-level decay (ablation): every update counts the same."""

    mixing: float = Field(0.3, gt=0, lt=1, description="alpha, the share of every update in the new model")

    def decay(self, members: int) -> Decay:
        return Decay(self.mixing, stale_after(self.t, members, self.kappa), power=0)


@strategy("casa-c")
class CasaC(Asynchronous):
    """CASA without clusters (ablation): one model for all, mixed by bi-level decay."""

    alpha0: float = Field(2.0, gt=0, le=2, description="basic decay; with more than 2 alpha could exceed 1")
    kappa: float = Field(0.001, gt=0, description="how fast Omega(t) = (e/2.8)^(kappa t) falls")

    def updated(self, update: Update, now: float) -> None:
        decay = bi_level(self.model.version + 1, len(self.participation.members), self.alpha0, self.kappa)
        self.model.mix(update.weights, decay.client(self.tau(update)))
