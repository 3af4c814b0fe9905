"""EchoPFL: asynchronous personalized federated learning on mobile devices with on-demand staleness control (Li et al.,
IMWUT 2024).

``preset="paper"`` has the paper's rules. With them a broadcast traps clients: a client in a wrong cluster is refreshed
with its model, has few steps left, hands in something near that model, and stays (Eq. 1). So by default clients are
assigned by what their trained models say of their data, and keep their progress when they are refreshed. Clusters
whose members' data are alike become one: otherwise clients without groups are divided for nothing.

Settled here, where the paper is silent or of two minds: a client is assigned anew with every update; it stays where it
is on a tie (an expanded cluster begins as a copy of the one it came from); how much an update counts; clusters are
expanded every four updates per client, and merged half a period later; a cluster that nobody is in ends. A broadcast
goes to the members in training: all others get the newest model with their next order anyway. The default policy of
broadcasts needs no predictor; the paper's two (its Eq. 4 and its predictor) are others. The paper's predictor sees the
K largest changes of a cluster's model; here it sees the last ten. docs/methods/broadcasts.md has the figures."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.model.rows import l1
from polytempo.core.orders import Order, Orders, Send, Train
from polytempo.strategies.base.strategy import Presets, strategy
from polytempo.strategies.parts.assignment import ASSIGNMENTS, Assignment, Rule
from polytempo.strategies.parts.clusters import Clustered
from polytempo.strategies.parts.echo import Echo, Policy
from polytempo.strategies.parts.echo_predictor import pretrained
from polytempo.strategies.parts.refinement import feedback_in, mean_feedbacks, merged, most_alike, worst_fifth
from polytempo.strategies.parts.soft_labels import FIT, divergence, members_soft_label, soft_label_in

UPDATES_PER_CLIENT = 4
"""Between two expansions."""


@strategy("echopfl")
class EchoPFL(Clustered):
    """Nobody is dropped or decayed for being slow. The first C updates found clusters; every later one joins the
    cluster whose members' soft labels are nearest (the paper: the nearest model, ``argmin_c ||u_i - v_c||_1``, Eq. 1),
    and is mixed into it as q of its members, ``v_c <- lerp(v_c, u_i, q / (members + q))``. Then the fresh model is
    broadcast to the members in training, if that pays. From time to time the clients that a cluster fits worst are
    expanded into a new one, and the most alike clusters merged."""

    preset: Literal["ours", "paper"] = Field(
        "ours",
        description="paper: its rules and numbers",
    )
    first_clusters: int = Field(2, ge=1, description="C, how many of the first updates found a cluster")
    assignment: Rule = Field(
        "kl",
        description="by what a client is assigned: l1 distance of models, cosine of their ways from the initial one, "
        "kl of soft labels, or loss: the lowest on its data, for which it gets all models",
    )
    counts_as: float = Field(
        6.0,
        gt=0,
        description="q, members that an update counts as: its share in the model is counts_as/(members + counts_as)",
    )
    refine_every: int | None = Field(
        None, ge=0, description="updates between two expansions; unset: four per client; 0: clusters stay as they are"
    )
    feedback_from: Literal["sample", "all"] = Field(
        "sample", description="the rows by which a client says how well its model fits: a sample of 100, or all"
    )
    merge_above: float = Field(2.0, ge=1, description="h_m, merge while there are more than this many times C")
    alike_below: float = Field(
        1.0,
        ge=0,
        description="divergence of soft labels below which clusters merge and clients are not expanded",
    )
    merging: Literal["direction", "average"] = Field(
        "direction", description="of two models: direction, as far as training leads from one to the other, or average"
    )
    last_layer: bool = Field(True, description="an expanded cluster trains its last layer only until the next merging")
    broadcast: Policy = Field(
        "accumulated", description="when a fresh model is broadcast: accumulated, eq4, rnn, always or never"
    )
    rho: float = Field(
        2.5, gt=0, description="accumulated change that is broadcast, as a multiple of the mean of the last ten"
    )
    refresh: Literal["continue", "rebase"] = Field(
        "rebase",
        description="what a client in training makes of a broadcast: continue from it, or rebase, its progress added",
    )

    presets: ClassVar[Presets] = {
        "paper": {
            "assignment": "l1",
            "counts_as": 1.0,
            "feedback_from": "all",
            "alike_below": 0.0,
            "broadcast": "rnn",
            "refresh": "continue",
        }
    }
    together = False
    revision = 2

    def setup(self) -> None:
        self.founded = 0
        """How many of the first updates have founded a cluster."""
        self.echoes: dict[int, Echo] = {}
        self.latest: dict[int, Tensor] = {}
        """Cluster -> the last update that was mixed into it."""
        self.feedback: dict[int, float] = {}
        """Client -> how badly the model of the cluster it is in fits it."""
        self.soft_labels: dict[int, np.ndarray] = {}
        self.fine_tuned: dict[int, None] = {}
        """Expanded clusters, of which only the last layer is trained."""
        self.training: dict[int, tuple[int, ...]] = {}
        """Clients in training -> the clusters that were offered to each, its own first."""
        self.since_expansion = 0
        self.merging_is_due = False
        self.first_predictor = pretrained() if self.broadcast == "rnn" else None
        """Made now, and not while the first client waits."""

    def resolved(self) -> dict[str, Any]:
        return {"refine_every": self._period()}

    @property
    def _rule(self) -> Assignment:
        return ASSIGNMENTS[self.assignment]

    # Events.

    def order_for(self, client: int, now: float) -> Train:
        offered = self.training[client] = self._rule.offered(self, client)
        return self.train(
            client,
            self.clusters.branches[offered[0]],
            candidates=self.clusters.candidates(offered) if len(offered) > 1 else None,
            questions=((FIT[self.feedback_from],) if self._period() else ()) + self._rule.questions,
            trainable=(self.setting.schema.last_layer,) if offered[0] in self.fine_tuned else (),
        )

    def updated(self, update: Update, now: float) -> Iterator[Order]:
        offered = self.training.pop(update.client, ())
        if self._is_founder(update):
            self._found_cluster(update)
        else:
            self._assign(update, offered)
            yield from self._mix(update)
        yield from self._refine(now)

    def observed(self, update: Update, now: float) -> None:
        offered = self.training.pop(update.client, ())
        if not self._is_founder(update):
            self._assign(update, offered)

    def pulled(self, client: int, now: float) -> list[Send]:
        return [self._send(client, self.clusters.branch(client))]

    def left(self, client: int, now: float) -> Orders:
        self.training.pop(client, None)
        return super().left(client, now)

    def forget(self, client: int) -> None:
        """The last update of a cluster may be this client's, and so may the model that broadcasts are measured from.
        A cluster that nobody else belongs to ends, unless it is the only one."""
        cluster = self.clusters.home.get(client)
        super().forget(client)
        self.soft_labels.pop(client, None)
        self.feedback.pop(client, None)
        if len(self.clusters.branches) > 1 and cluster is not None and cluster not in self.clusters.home.values():
            self.clusters.end(cluster)
            self._forget_cluster(cluster)
        self.latest = {}
        for number, echo in self.echoes.items():
            echo.mark_sent(self.clusters.branches[number].weights)

    # Clustering (section 4.2).

    def branch_of(self, update: Update) -> int:
        if self._is_founder(update):
            return self.clusters.next_number if self.founded else next(iter(self.clusters.branches))
        return self._rule.cluster_for(self, update, self.training.get(update.client, ()))

    def _is_founder(self, update: Update) -> bool:
        return update.client not in self.clusters.home and self.founded < self.first_clusters

    def _found_cluster(self, update: Update) -> None:
        """One of the first updates: it is the model of a new cluster, and nobody else's are mixed with it."""
        self._note_soft_label(update)
        first = update.own.weights
        if self.founded == 0:
            cluster = next(iter(self.clusters.branches))  # that of the initial model
            self.clusters.branches[cluster].replace(first)
            self.clusters.assign(update.client, cluster)
        else:
            cluster = self.clusters.add(Branch(first, 1), [update.client])
        self.founded += 1
        self.latest[cluster] = first
        self.echoes[cluster] = Echo(first, self.first_predictor and self.first_predictor.copy())

    def _assign(self, update: Update, offered: tuple[int, ...]) -> None:
        """Assign the client (Eq. 1), and keep what it says of its cluster."""
        self._note_soft_label(update)
        before = self.clusters.home.get(update.client)
        self.clusters.assign(update.client, self._rule.cluster_for(self, update, offered))
        self._note_feedback(update, offered, before)

    def _note_soft_label(self, update: Update) -> None:
        label = soft_label_in(update.answers)
        if label is not None:
            self.soft_labels[update.client] = label

    def _mix(self, update: Update) -> Iterator[Order]:
        """``v_c <- lerp(v_c, u_i, share)``, and a broadcast if it pays."""
        cluster = self.clusters.home[update.client]
        branch, echo = self.clusters.branches[cluster], self.echoes[cluster]
        before = branch.weights
        branch.mix(update.weights, self.counts_as / (len(self.clusters.members[cluster]) + self.counts_as))
        self.latest[cluster] = update.weights
        echo.record(branch.weights, l1(branch.weights, before))
        if echo.decide(self.broadcast, self.rho):
            yield from self._broadcast(cluster)

    # Refinement (section 4.3).

    def _note_feedback(self, update: Update, offered: tuple[int, ...], before: int | None) -> None:
        """Keep what the client says of the model it got, unless it has just moved to a cluster that has another. It
        counts for clients that an expansion or a merge has moved meanwhile: the slow would hardly ever count
        otherwise."""
        home = self.clusters.home[update.client]
        chosen = offered[update.chosen or 0] if offered and update.version else None  # version 0: the initial model
        feedback = feedback_in(update.answers)
        if home in (before, chosen) and feedback is not None:
            self.feedback[update.client] = feedback
        else:
            self.feedback.pop(update.client, None)

    def _period(self) -> int:
        return UPDATES_PER_CLIENT * len(self.participation.members) if self.refine_every is None else self.refine_every

    def _refine(self, now: float) -> Iterator[Order]:
        """Expand clusters after every period, and merge them in the middle of the next."""
        period = self._period()
        if not period:
            return
        self.since_expansion += 1
        if self.merging_is_due and 2 * self.since_expansion >= period:
            self.merging_is_due = False
            yield from self._merge_clusters(now)
        if self.since_expansion >= period:
            self.since_expansion, self.merging_is_due = 0, True
            self._expand_clusters(now)

    def _expand_clusters(self, now: float) -> None:
        """The worst served fifth of each cluster forms a new one, which begins from the same model, unless its soft
        labels are like those of the others."""
        self._forget_empty()
        for cluster in list(self.clusters.branches):
            known = {c: self.feedback[c] for c in self.clusters.members[cluster] if c in self.feedback}
            worst = worst_fifth(known)
            if worst and self._are_apart(worst, cluster):
                expanded = self.clusters.expand(cluster, worst, now, mean_feedbacks(known, worst))
                self.echoes[expanded] = self.echoes[cluster].expanded(self.clusters.branches[expanded].weights)
                self.fine_tuned |= {expanded: None} if self.last_layer else {}
                for client in worst:
                    del self.feedback[client]

    def _are_apart(self, some: list[int], cluster: int) -> bool:
        others = [client for client in self.clusters.members[cluster] if client not in some]
        labels = self.soft_labels
        return divergence(members_soft_label(labels, some), members_soft_label(labels, others)) >= self.alike_below

    def _merge_clusters(self, now: float) -> Iterator[Order]:
        """While there are too many clusters, or two that are alike, the two with the most alike soft labels become one,
        which is broadcast."""
        self._forget_empty()
        self.fine_tuned = {}
        fresh: dict[int, None] = {}
        while pair := most_alike(self.clusters.members, self.soft_labels):
            too_many = len(self.clusters.branches) > self.merge_above * self.first_clusters
            if not too_many and pair.divergence >= self.alike_below:
                break
            main, other = pair.main, pair.other
            v, aux = self.clusters.branches[main].weights, self.clusters.branches[other].weights
            model = merged(self.merging, v, aux, self.latest.get(main))
            self.clusters.merge(main, other, model, now, {"divergence": pair.divergence})
            self.echoes[main] = self.echoes[main].merged(self.echoes.pop(other), model)
            self.latest.pop(other, None)
            fresh.pop(other, None)
            fresh[main] = None
        for cluster in fresh if self.broadcast != "never" else ():
            yield from self._broadcast(cluster)

    def _forget_empty(self) -> None:
        for cluster in self.clusters.end_empty():
            self._forget_cluster(cluster)

    def _forget_cluster(self, cluster: int) -> None:
        self.echoes.pop(cluster, None)
        self.latest.pop(cluster, None)
        self.fine_tuned.pop(cluster, None)

    # Broadcasts (section 5.2).

    def _broadcast(self, cluster: int) -> Iterator[Order]:
        branch = self.clusters.branches[cluster]
        self.echoes[cluster].mark_sent(branch.weights)
        for client in self.clusters.members[cluster]:
            if len(self.training.get(client, ())) == 1:  # who was offered several may train another cluster's
                yield self._send(client, branch)

    def _send(self, client: int, branch: Branch) -> Send:
        return Send(client, branch.weights, branch.version, rebase=self.refresh == "rebase")
