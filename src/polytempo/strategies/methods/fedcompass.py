"""FedCompass: efficient federated learning with a computing power-aware scheduler (Li et al., ICLR 2024), and its forms
with server momentum (+M) and normalised averaging (+N, after FedNova; Wang et al., 2020). Scheduling is Compass's
(``parts/compass.py``, ``parts/arrival_groups.py``); this file is what its groups do to the model."""

from collections.abc import Sequence

import torch
from pydantic import Field

from polytempo.core.events import Update
from polytempo.core.orders import Orders
from polytempo.strategies.base.strategy import Setting, strategy
from polytempo.strategies.parts.arrival_groups import Arrival, ArrivalGroups, weighted_sum
from polytempo.strategies.parts.importance import Importance
from polytempo.strategies.parts.staleness import Polynomial, Staleness


@strategy("fedcompass")
class FedCompass(ArrivalGroups):
    """Clients arrive in groups: ``w <- w + sum_i st(tau_i) p_i delta_i`` over a group and those who were late for
    theirs, with ``st(tau) = alpha s(tau)`` when the update came, and ``p_i = n_i / n``."""

    server_lr: float = Field(0.9, gt=0, description="alpha, what a fresh update counts")
    staleness: Staleness = Field(Polynomial(0.5), description="s(tau): constant, polynomial:A or hinge:A:B")

    def begin(self, setting: Setting) -> None:
        self.importance = Importance()
        super().begin(setting)

    def weight(self, update: Update) -> float:
        """``st(tau_i) p_i``"""
        if not update.weight:
            return 0.0
        self.importance.note(update.client, update.samples)
        share = self.importance.of(update.client, len(self.participation.members))
        return self.server_lr * self.staleness(self.tau(update)) * share

    def aggregate(self, arrivals: Sequence[Arrival], now: float) -> None:
        self.model.step(weighted_sum(arrivals))

    def left(self, client: int, now: float) -> Orders:
        self.importance.forget(client)
        return super().left(client, now)


@strategy("fedcompass+m")
class FedCompassM(FedCompass):
    """FedCompass with momentum on the server's group steps: ``v <- beta v + sum_i st(tau_i) p_i delta_i; w <- w + v``.
    A client's first update counts as in FedCompass."""

    server_momentum: float = Field(0.9, ge=0, lt=1, description="beta, the share of the last step that is kept")

    def setup(self) -> None:
        self.velocity = torch.zeros_like(self.setting.initial)

    def count_first(self, arrival: Arrival, now: float) -> None:
        super().aggregate([arrival], now)

    def aggregate(self, arrivals: Sequence[Arrival], now: float) -> None:
        self.velocity.mul_(self.server_momentum).add_(weighted_sum(arrivals))
        self.model.step(self.velocity)

    def forget(self, client: int) -> None:
        self.velocity.zero_()
        super().forget(client)


@strategy("fedcompass+n")
class FedCompassN(FedCompass):
    """FedCompass with normalised averaging, so that who trains more steps does not pull harder:
    ``w <- w + q sum_i st(tau_i) p_i delta_i / q_i``, q_i the steps of an update and q their mean."""

    def aggregate(self, arrivals: Sequence[Arrival], now: float) -> None:
        steps = [max(arrival.update.steps, 1) for arrival in arrivals]
        mean = sum(steps) / len(steps)
        scaled = [Arrival(a.update, a.weight * mean / own) for a, own in zip(arrivals, steps, strict=True)]
        super().aggregate(scaled, now)
