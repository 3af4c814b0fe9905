"""CA2FL: tackling the data heterogeneity in asynchronous federated learning with cached update calibration (Wang et
al., 2024), Algorithm 2."""

import torch
from pydantic import Field
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.orders import Orders
from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.parts.asynchronous import Asynchronous
from polytempo.strategies.parts.member_mean import MemberMean


@strategy("ca2fl")
class CA2FL(Asynchronous):
    """Gather K deltas and calibrate them by the last delta h_j of every member, 0 for who has handed in none:
    ``w <- w + eta (1/n sum_j h_j + 1/K sum_i (delta_i - h_i))``, and only then ``h_i <- delta_i``. Fast clients, whose
    h_i is close to their delta_i, no longer drag the model their way. A client that leaves takes its h_i along; what it
    handed in before still counts."""

    buffer_size: int = Field(10, ge=1, description="K, updates per server step")
    server_lr: float = Field(1.0, gt=0, description="eta, the server's learning rate")

    def setup(self) -> None:
        self.cached = MemberMean(self.setting.initial)
        self.buffered = 0
        self.changes = torch.zeros_like(self.setting.initial)
        """``sum_i (delta_i - h_i)``"""
        self.arrived: dict[int, Tensor] = {}
        """The deltas to be cached."""

    def updated(self, update: Update, now: float) -> None:
        delta = update.delta
        self.changes.add_(delta).sub_(self.cached.of(update.client))
        self.arrived[update.client] = delta
        self.buffered += 1
        if self.buffered == self.buffer_size:
            self._aggregate()

    def left(self, client: int, now: float) -> Orders:
        self.cached.forget(client)
        self.arrived.pop(client, None)
        return super().left(client, now)

    def forget(self, client: int) -> None:
        self._empty()
        super().forget(client)

    def _aggregate(self) -> None:
        everybody = self.cached.mean(len(self.participation.members))
        self.model.step(everybody.add_(self.changes, alpha=1 / self.buffer_size), self.server_lr)
        for client, delta in self.arrived.items():
            self.cached.put(client, delta)
        self._empty()

    def _empty(self) -> None:
        self.buffered, self.arrived = 0, {}
        self.changes.zero_()
