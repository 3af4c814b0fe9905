"""CASA+: CASA with sparse training for slow clients (Liu et al., KDD 2024, section 4.4)."""

import math
from dataclasses import replace

import torch
from pydantic import Field
from torch import Tensor

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.orders import Orders, Train
from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.methods.casa import Casa
from polytempo.strategies.parts.decay import Decay


@strategy("casa+")
class CasaPlus(Casa):
    """CASA whose stale clients train and upload only their larger weights: the share left out follows from a client's
    last update (Eq. 17), and only what it trained is mixed in: ``g_k <- g_k + m_i alpha_i (w_i - g_k)`` (Eq. 16)."""

    sparsity: float = Field(0.6, ge=0, description="S0, the scale of the share that slow clients leave out")

    def setup(self) -> None:
        super().setup()
        self.masks: dict[int, Tensor] = {}
        """What each client with a mask trains, from one update to the next."""

    def left(self, client: int, now: float) -> Orders:
        self.masks.pop(client, None)
        return super().left(client, now)

    def order_for(self, client: int, now: float) -> Train:
        return replace(super().order_for(client, now), mask=self.masks.get(client))

    def aggregate(self, branch: Branch, update: Update, decay: Decay, alpha: float) -> None:
        branch.mix(update.weights, alpha, self.masks.pop(update.client, None))
        share = self.share_left_out(decay.cluster, alpha)
        if share > 0:
            self.masks[update.client] = all_but_smallest(update.weights, share)

    def share_left_out(self, cluster: float, alpha: float) -> float:
        """``S_i = S0/2 (alpha_c - alpha_i) (1 + cos((t - 1) pi / R_end))``, within [0, 1). R_end is the planned number
        of updates; without a plan nothing is left out."""
        planned = self.setting.planned_updates
        if planned is None:
            return 0.0
        annealing = 1 + math.cos(min((self.t - 1) / planned, 1.0) * math.pi)
        return min(self.sparsity / 2 * (cluster - alpha) * annealing, 0.99)


def all_but_smallest(weights: Tensor, share: float) -> Tensor:
    """A mask without the smallest ``share`` of the weights by size."""
    mask = torch.ones(len(weights), dtype=torch.bool)
    left_out = int(share * len(weights))
    mask[torch.topk(weights.abs(), left_out, largest=False, sorted=False).indices] = False
    return mask
