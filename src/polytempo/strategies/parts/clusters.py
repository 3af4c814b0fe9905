"""Clusters: who shares a model with whom, one branch per cluster, and how the clusters came about."""

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.orders import Orders, Train
from polytempo.core.splits import Split
from polytempo.core.state import Attributes, stateful
from polytempo.strategies.strategy import Setting, Strategy


@stateful
class Clusters(Attributes):
    """A partition of the clients that are there. Clusters have numbers that are never used twice: a split ends its
    cluster and begins new ones, each from the weights and the version of the old one, so that versions stay comparable
    over a split. Who goes away keeps its cluster, unless that splits meanwhile."""

    def __init__(self, branches: Mapping[int, Branch]) -> None:
        self.branches = dict(branches)
        self.members: dict[int, dict[int, None]] = {cluster: {} for cluster in branches}
        """The clients of each cluster that are there, in the order in which they came."""
        self.home: dict[int, int] = {}
        """Client -> cluster, also of clients that are away."""
        self.newcomers: dict[int, None] = {}
        """Clients that are there and belong to no cluster yet."""
        self.splits: list[Split] = []

    def join(self, client: int) -> None:
        """A client comes, or comes back. While there is only one cluster, everybody belongs to it."""
        if client in self.home:
            self.members[self.home[client]][client] = None
        elif len(self.branches) == 1:
            self.assign(client, next(iter(self.branches)))
        else:
            self.newcomers[client] = None

    def leave(self, client: int) -> None:
        self.newcomers.pop(client, None)
        if client in self.home:
            self.members[self.home[client]].pop(client, None)

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

    def branch_of(self, client: int) -> Branch:
        return self.branches[self.of(client)]

    def at_home(self, updates: Sequence[Update]) -> dict[int, list[Update]]:
        """The updates of a round by cluster, without those of clients that have none."""
        found: dict[int, list[Update]] = {}
        for update in updates:
            if update.client in self.home:
                found.setdefault(self.home[update.client], []).append(update)
        return found

    def complete(self, cluster: int, handed_in: Collection[int]) -> list[int]:
        """The members of a cluster that could be split: two or more, all of whom handed in; else nobody."""
        members = self.members[cluster]
        return list(members) if len(members) >= 2 and all(client in handed_in for client in members) else []

    def split(self, cluster: int, parts: Sequence[Sequence[int]], now: float, why: Mapping[str, float]) -> None:
        """End a cluster and begin one for each part of its members; the parts have to hold every member once."""
        members, branch = self.members[cluster], self.branches[cluster]
        if sorted(client for part in parts for client in part) != sorted(members):
            raise ValueError(f"the parts {parts} are no partition of cluster {cluster} with members {list(members)}")
        first = max(self.branches) + 1
        for number, part in enumerate(parts, first):
            self.branches[number] = Branch(branch.weights, branch.version)
            self.members[number] = dict.fromkeys(part)
            self.home |= dict.fromkeys(part, number)
        del self.members[cluster], self.branches[cluster]
        self.home = {client: home for client, home in self.home.items() if home != cluster}
        self.splits.append(
            Split(now, cluster, tuple(range(first, first + len(parts))), tuple(map(tuple, parts)), {**why})
        )


class Clustered(Strategy):
    """The base of clustered methods: a client is given, and served, the model of its cluster."""

    def begin(self, setting: Setting) -> None:
        self.clusters = Clusters(self.first_branches(setting))
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

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self.clusters.branch_of(client))

    def model_for(self, client: int) -> Tensor:
        return self.clusters.branch_of(client).weights

    def cluster_of(self, client: int) -> int:
        return self.clusters.of(client)

    def tau(self, update: Update) -> int:
        """Staleness in versions of the client's own branch; 0 where the model came from a branch further on."""
        return max(self.clusters.branch_of(update.client).version - update.version, 0)

    def splits(self) -> Sequence[Split]:
        return self.clusters.splits
