"""FedBuff: federated learning with buffered asynchronous aggregation (Nguyen et al., 2022), Algorithm 1."""

import torch
from pydantic import Field

from polytempo.core.events import Update
from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.parts.asynchronous import Asynchronous
from polytempo.strategies.parts.staleness import Polynomial, Staleness


@strategy("fedbuff")
class FedBuff(Asynchronous):
    """Gather K deltas, then take one step: ``w <- w + eta_g / K sum_i s(tau_i) delta_i``."""

    buffer_size: int = Field(10, ge=1, description="K, updates per server step")
    server_lr: float = Field(1.0, gt=0, description="eta_g, the server's learning rate")
    staleness: Staleness = Field(Polynomial(0.5), description="s(tau): constant, polynomial:A or hinge:A:B")

    def setup(self) -> None:
        self.buffered = 0
        self.buffer = torch.zeros_like(self.setting.initial)

    def updated(self, update: Update, now: float) -> None:
        self.buffer.add_(update.delta, alpha=self.staleness(self.tau(update)))
        self.buffered += 1
        if self.buffered == self.buffer_size:
            self.model.step(self.buffer, self.server_lr / self.buffer_size)
            self._empty()

    def forget(self, client: int) -> None:
        self._empty()
        super().forget(client)

    def _empty(self) -> None:
        self.buffered = 0
        self.buffer.zero_()
