"""What the asynchronous forms of clustered methods share: decayed mixing, and the most recent vector of each client."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.orders import Orders
from polytempo.core.stateful import Attributes, stateful
from polytempo.strategies.base.strategy import parameters
from polytempo.strategies.parts.clusters import Clustered
from polytempo.strategies.parts.cosines import cosines_by_client, nearest, norm
from polytempo.strategies.parts.mixing import DecayedMixing


@stateful
class Latest(Attributes):
    """The most recent vector of each client that is there, shared, never copied; and for each cluster
    ``sum_j s_j v_j`` over its members, kept up with every event, so that an event costs O(d) however large it is."""

    def __init__(self) -> None:
        self.vectors: dict[int, Tensor] = {}
        self.scales: dict[int, float] = {}
        self.norms: dict[int, float] = {}
        self.sums: dict[int, Tensor] = {}
        """Of clusters in which anybody is counted; in double precision, where adding and taking away hardly rounds."""
        self.counted: dict[int, int] = {}
        """Client -> the cluster in whose sum it is."""

    def put(self, client: int, cluster: int, vector: Tensor, scale: float, length: float) -> None:
        """A client of this cluster handed in."""
        self.forget(client)
        self.vectors[client], self.scales[client], self.norms[client] = vector, scale, length
        self._count(client, cluster)

    def forget(self, client: int) -> None:
        """What a client handed in counts no more."""
        if client in self.counted:
            cluster, vector, scale = self.counted.pop(client), self.vectors.pop(client), self.scales.pop(client)
            del self.norms[client]
            self.sums[cluster].sub_(vector, alpha=scale)
            if cluster not in self.counted.values():
                del self.sums[cluster]

    def split(self, cluster: int, parts: Mapping[int, Iterable[int]]) -> None:
        """A cluster, all of whose members are counted, ended and these began: their sums are made afresh."""
        for number, clients in parts.items():
            for client in clients:
                self._count(client, number)
        del self.sums[cluster]

    def _count(self, client: int, cluster: int) -> None:
        total = self.sums.setdefault(cluster, torch.zeros_like(self.vectors[client], dtype=torch.float64))
        total.add_(self.vectors[client], alpha=self.scales[client])
        self.counted[client] = cluster


@parameters
class LatestClustered(DecayedMixing, Clustered, ABC):
    """Each update is mixed into its cluster's model, less the staler it is, and becomes its client's most recent one;
    then the method looks whether that cluster has to split. The first update of a client without a cluster, trained
    from another cluster's model, only says where the client belongs."""

    def setup(self) -> None:
        self.latest = Latest()

    @abstractmethod
    def compared(self, update: Update) -> Tensor:
        """The vector by which clients are compared."""

    @abstractmethod
    def scale(self, update: Update, length: float) -> float:
        """How much a vector of this length counts in its cluster's sum."""

    @abstractmethod
    def directions(self) -> Mapping[int, Tensor]:
        """What stands for each cluster when a newcomer is assigned."""

    @abstractmethod
    def split_if_due(self, cluster: int, members: Sequence[int], now: float) -> None:
        """Split this cluster, if it has to be. It has two members or more and all of them have handed in."""

    def left(self, client: int, now: float) -> Orders:
        self.latest.forget(client)
        return super().left(client, now)

    def updated(self, update: Update, now: float) -> None:
        if update.client in self.clusters.home:
            self.mix_in(self.clusters.branches[self.clusters.home[update.client]], update)
        self.observed(update, now)

    def observed(self, update: Update, now: float) -> None:
        client, vector = update.client, self.compared(update)
        if client not in self.clusters.home:
            self.clusters.assign(client, nearest(vector, self.directions(), otherwise=self.clusters.largest()))
            return
        cluster, length = self.clusters.home[client], norm(vector)
        self.latest.put(client, cluster, vector, self.scale(update, length), length)
        members = self.clusters.splittable(cluster, self.latest.counted)
        if members:
            self.split_if_due(cluster, members, now)

    def split(self, cluster: int, parts: Sequence[Sequence[int]], now: float, why: Mapping[str, float]) -> None:
        self.clusters.split(cluster, parts, now, why)
        numbers = self.clusters.splits[-1].parts
        self.latest.split(cluster, dict(zip(numbers, parts, strict=True)))

    def similarity(self) -> np.ndarray | None:
        return cosines_by_client(self.latest.vectors)
