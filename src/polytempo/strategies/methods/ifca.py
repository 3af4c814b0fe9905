"""IFCA: an efficient framework for clustered federated learning (Ghosh et al., 2020), Algorithm 1 with model averaging,
and its asynchronous form.

Ghosh et al. start from k random models. Here the first is the run's initial model and each other one has the same
entries, permuted within every named tensor: as random, with the scale that every layer needs. The asynchronous form is
CASA's (Liu et al., 2024): decayed mixing (``parts/mixing.py``) into the model that the client chose."""

from collections.abc import Mapping, Sequence

import torch
from pydantic import Field
from torch import Tensor

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.orders import Train
from polytempo.strategies.base.strategy import Setting, parameters, strategy
from polytempo.strategies.parts.clusters import Clustered
from polytempo.strategies.parts.mixing import DecayedMixing
from polytempo.strategies.parts.rounds import Rounds, plain_mean_delta
from polytempo_client.streams import stream


@parameters
class BestOfK(Clustered):
    """k models; a client gets all of them, goes on from the one with the lowest loss on its data, and belongs to that
    cluster until it chooses again."""

    k: int = Field(4, ge=1, description="number of clusters")

    def first_branches(self, setting: Setting) -> Mapping[int, Branch]:
        others = {number: Branch(shuffled(setting, number)) for number in range(1, self.k)}
        return {0: Branch(setting.initial)} | others

    def order_for(self, client: int, now: float) -> Train:
        offered = self.clusters.candidates(self.clusters.branches)
        return self.train(client, self.clusters.branch(client), candidates=offered)

    def tau(self, update: Update) -> int:
        return max(self.clusters.branches[self.chosen(update)].version - update.version, 0)

    def branch_of(self, update: Update) -> int:
        return self.chosen(update)

    def chosen(self, update: Update) -> int:
        """The cluster whose model the client chose; its own, if it was not asked."""
        return self.clusters.of(update.client) if update.chosen is None else update.chosen


@strategy("ifca")
class IFCA(BestOfK, Rounds):
    """k models from different initial weights: each client trains the one that fits it best, and each moves by the
    plain mean of the deltas of those who chose it; a model that nobody chose stays as it is."""

    revision = 1

    def aggregate(self, updates: Sequence[Update], now: float) -> None:
        for cluster, branch in self.clusters.branches.items():
            theirs = [update for update in updates if self.chosen(update) == cluster]
            if theirs:
                branch.step(plain_mean_delta(theirs))
        for update in updates:
            if update.client in self.participation.members:  # who left since it handed in is not there
                self.clusters.assign(update.client, self.chosen(update))


@strategy("ifca-async")
class IFCAAsync(DecayedMixing, BestOfK):
    """IFCA without rounds: ``g_k <- lerp(g_k, w_i, alpha s(tau_i))`` for the model g_k that client i chose."""

    def updated(self, update: Update, now: float) -> None:
        cluster = self.chosen(update)
        self.mix_in(self.clusters.branches[cluster], update)
        self.clusters.assign(update.client, cluster)

    def observed(self, update: Update, now: float) -> None:
        self.clusters.assign(update.client, self.chosen(update))


def shuffled(setting: Setting, number: int) -> Tensor:
    """The initial model with the entries of each named tensor in another order."""
    rng = stream(setting.seed, "ifca initial", number)
    spans = setting.schema.spans.values()
    return torch.cat(
        [setting.initial[span][torch.from_numpy(rng.permutation(span.stop - span.start))] for span in spans]
    )
