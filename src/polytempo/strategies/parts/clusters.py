"""Clusters: who shares a model with whom, one branch per cluster, and how the clusters came about."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from torch import Tensor

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.orders import Candidates, Orders, Train
from polytempo.core.splits import Regrouping, Split
from polytempo.core.stateful import Attributes, stateful
from polytempo.strategies.base.strategy import Setting, Strategy


@stateful
class Clusters(Attributes):
    """A partition of the clients that are there. Clusters have numbers that are never used twice: a split ends its
    cluster and begins new ones, each from the weights and the version of the old one, so that versions stay comparable
    over a split. Who goes away keeps its cluster, unless that ends meanwhile."""

    def __init__(self, branches: Mapping[int, Branch], together: bool = True) -> None:
        self.branches = dict(branches)
        self.together = together
        self.next_number = max(branches) + 1
        self.members: dict[int, dict[int, None]] = {cluster: {} for cluster in branches}
        """The clients of each cluster that are there, in the order in which they came."""
        self.home: dict[int, int] = {}
        """Client -> cluster, also of clients that are away."""
        self.newcomers: dict[int, None] = {}
        """Clients that are there and belong to no cluster yet."""
        self.splits: list[Split] = []
        self.regroupings: list[Regrouping] = []

    def join(self, client: int) -> None:
        """A client comes, or comes back. While there is only one cluster, everybody belongs to it if they are
        ``together``."""
        if client in self.home:
            self.members[self.home[client]][client] = None
        elif self.together and len(self.branches) == 1:
            self.assign(client, next(iter(self.branches)))
        else:
            self.newcomers[client] = None

    def leave(self, client: int) -> None:
        self.newcomers.pop(client, None)
        if client in self.home:
            self.members[self.home[client]].pop(client, None)

    def forget(self, client: int) -> None:
        """A client that is not there belongs to no cluster any more."""
        self.home.pop(client, None)

    def assign(self, client: int, cluster: int) -> None:
        """Put a client into a cluster, out of the one it was in."""
        self.leave(client)
        self.home[client] = cluster
        self.members[cluster][client] = None

    def dismiss(self, client: int) -> None:
        """Take a client that is there out of its cluster: it is a newcomer again."""
        del self.members[self.home.pop(client)][client]
        self.newcomers[client] = None

    def largest(self) -> int:
        """The cluster with the most members; of several, the oldest."""
        return max(self.members, key=lambda cluster: (len(self.members[cluster]), -cluster))

    def of(self, client: int) -> int:
        """The client's cluster, or the largest while it has none."""
        return self.home[client] if client in self.home else self.largest()

    def branch(self, client: int) -> Branch:
        return self.branches[self.of(client)]

    def candidates(self, clusters: Iterable[int]) -> Candidates:
        """The models of these clusters, from which a client takes the best."""
        offered = [self.branches[cluster] for cluster in clusters]
        return Candidates(tuple(branch.weights for branch in offered), tuple(branch.version for branch in offered))

    def at_home(self, updates: Sequence[Update]) -> dict[int, list[Update]]:
        """The updates of a round by cluster, without those of clients that have none."""
        found: dict[int, list[Update]] = {}
        for update in updates:
            if update.client in self.home:
                found.setdefault(self.home[update.client], []).append(update)
        return found

    def splittable(self, cluster: int, handed_in: Collection[int]) -> list[int]:
        """The members of a cluster that could be split: two or more, all of whom handed in; else nobody."""
        members = self.members[cluster]
        return list(members) if len(members) >= 2 and all(client in handed_in for client in members) else []

    def split(self, cluster: int, parts: Sequence[Sequence[int]], now: float, why: Mapping[str, float]) -> None:
        """End a cluster and begin one for each part of its members; the parts have to hold every member once."""
        members, branch = self.members[cluster], self.branches[cluster]
        if sorted(client for part in parts for client in part) != sorted(members):
            raise ValueError(f"the parts {parts} are no partition of cluster {cluster} with members {list(members)}")
        numbers = tuple(self.add(Branch(branch.weights, branch.version), part) for part in parts)
        self.end(cluster)
        self.splits.append(Split(now, cluster, numbers, tuple(map(tuple, parts)), {**why}))

    def add(self, branch: Branch, clients: Sequence[int]) -> int:
        """Begin a cluster with these clients, out of those they were in; its number."""
        number = self.next_number
        self.next_number += 1
        self.branches[number], self.members[number] = branch, {}
        for client in clients:
            self.assign(client, number)
        return number

    def expand(self, cluster: int, clients: Sequence[int], now: float, why: Mapping[str, float]) -> int:
        """Begin a cluster for some members of another, from its weights and version; its number."""
        branch = self.branches[cluster]
        number = self.add(Branch(branch.weights, branch.version), clients)
        self.regroupings.append(Regrouping(now, "expansion", cluster, number, tuple(clients), {**why}))
        return number

    def merge(self, main: int, other: int, weights: Tensor, now: float, why: Mapping[str, float]) -> None:
        """End the other cluster; its clients, also those that are away, and these weights go to the main one, whose
        version is then above both."""
        moved = tuple(self.members[other])
        self.branches[main] = Branch(weights, max(self.branches[main].version, self.branches[other].version) + 1)
        self.members[main] |= self.members[other]
        self.home |= {client: main for client, home in self.home.items() if home == other}
        self.end(other)
        self.regroupings.append(Regrouping(now, "merge", other, main, moved, {**why}))

    def end_empty(self) -> list[int]:
        """End the clusters of which nobody is there, but for the largest; their numbers."""
        kept = self.largest()
        empty = [cluster for cluster, members in self.members.items() if not members and cluster != kept]
        for cluster in empty:
            self.end(cluster)
        return empty

    def end(self, cluster: int) -> None:
        """Its clients, those that are away among them, belong to no cluster any more."""
        del self.members[cluster], self.branches[cluster]
        self.home = {client: home for client, home in self.home.items() if home != cluster}


class Clustered(Strategy):
    """The base of clustered methods: a client is given, and served, the model of its cluster, or while it has none of
    the largest."""

    together: ClassVar[bool] = True
    """Does everybody belong to the first cluster, as long as it is the only one?"""

    def begin(self, setting: Setting) -> None:
        self.clusters = Clusters(self.first_branches(setting), self.together)
        super().begin(setting)
        del self.model  # its branches are those of the clusters

    def first_branches(self, setting: Setting) -> Mapping[int, Branch]:
        """The clusters that a run begins with: one with everybody."""
        return {0: Branch(setting.initial)}

    def joined(self, client: int, now: float) -> Orders:
        self.clusters.join(client)
        return super().joined(client, now)

    def left(self, client: int, now: float) -> Orders:
        self.clusters.leave(client)
        return super().left(client, now)

    def forget(self, client: int) -> None:
        self.clusters.forget(client)
        super().forget(client)

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self.clusters.branch(client))

    def model_for(self, client: int) -> Tensor:
        return self.clusters.branch(client).weights

    def cluster_of(self, client: int) -> int:
        return self.clusters.of(client)

    def tau(self, update: Update) -> int:
        """Staleness in versions of the client's own branch; 0 where the model came from a branch further on."""
        return max(self.clusters.branch(update.client).version - update.version, 0)

    def splits(self) -> Sequence[Split]:
        return self.clusters.splits

    def regroupings(self) -> Sequence[Regrouping]:
        return self.clusters.regroupings
