"""FedAC: efficient asynchronous federated learning with prospective momentum aggregation and fine-grained correction
(Zang et al., 2024), with the buffer and the server's learning rate of PACE's comparison, which names one beta, .9;
beta_1 is the paper's own.

The cosine with what the server did since an update started is 0 where it did nothing. So an update from the newest
model has the least weight. That follows from the formula; we do not know whether it is meant."""

import torch
from pydantic import Field

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.orders import Objective, Orders, Train, Work
from polytempo.core.schedules import rate_at
from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.parts.asynchronous import Asynchronous
from polytempo.strategies.parts.cosines import cosine, norm
from polytempo.strategies.parts.member_mean import MemberMean

LEAST_WEIGHT = 0.1
"""Of an update that does not lead where the server has gone meanwhile."""
EPSILON = 1e-8
"""Keeps the server's step finite where nothing ever moved."""


@strategy("fedac")
class FedAC(Asynchronous):
    """Server momentum that looks ahead, and control variates. Gather deltas, each weighted by how well it agrees with
    what the server did since it started, ``D = sum_i r_i delta_i`` with ``r_i ~ max(cos(w - w_start, delta_i), .1)``
    that sum to 1, then look ahead along the momentum: ``m <- b1 m + (1 - b1) D``, ``v <- b2 v + (1 - b2) D^2``,
    ``w <- w + eta (b1 m + (1 - b1) D) / (sqrt v + eps)``. Float buffers (batch norm's statistics) just move by D.

    Clients add ``C - C_i`` to every gradient. C_i is the mean gradient on client i's last way and C the mean of all
    members' C_i, 0 for who has handed in nothing. The server computes both, so that nothing but the model is uploaded:
    ``C_i <- (w_start - w_i) / (lr h) - (C - C_i)``, with the C and C_i that the client was sent and h the sum of all
    steps' coefficients: with plain SGD the number K of its steps, with momentum mu (where K lr / (1 - mu) would be
    right for many steps only) ``h = (K - mu (1 - mu^K) / (1 - mu)) / (1 - mu)``. A client that leaves takes its C_i
    along; what it handed in before still counts."""

    buffer_size: int = Field(5, ge=1, description="updates per server step")
    beta1: float = Field(0.6, ge=0, lt=1, description="b1, the share of the momentum that is kept")
    beta2: float = Field(0.9, ge=0, lt=1, description="b2, the share of the mean square that is kept")
    server_lr: float = Field(0.01, gt=0, description="eta, the server's learning rate")

    def setup(self) -> None:
        if self.setting.work.optimizer != "sgd":
            raise UserError(
                f"fedac computes a client's mean gradient from its steps, which {self.setting.work.optimizer} does not "
                "allow. Use --optimizer sgd."
            )
        self.buffered = 0
        self.weights = 0.0
        """``sum_i r_i`` of the buffer, before they are made to sum to 1, ..."""
        self.buffer = torch.zeros_like(self.setting.initial)
        """... and ``sum_i r_i delta_i``."""
        self.momentum = torch.zeros_like(self.setting.initial)
        self.mean_square = torch.zeros_like(self.setting.initial)
        self.variates = MemberMean(self.setting.initial)
        """The C_i."""
        self.corrections: dict[int, torch.Tensor] = {}
        """``C - C_i`` as clients in training were sent it."""
        self.tasks: dict[int, int] = {}
        """Orders so far, by client: learning rates may fall with them."""

    def order_for(self, client: int, now: float) -> Train:
        mean = self.variates.mean(len(self.participation.members))
        self.corrections[client] = mean.sub_(self.variates.of(client))
        self.tasks[client] = self.tasks.get(client, 0) + 1
        return self.train(client, self.model, objective=Objective(linear=self.corrections[client]))

    def updated(self, update: Update, now: float) -> None:
        delta, since = update.delta, self.model.weights - update.start
        weight = max(cosine(since, delta, norm(since) * norm(delta)), LEAST_WEIGHT)
        self.buffer.add_(delta, alpha=weight)
        self.weights += weight
        self.buffered += 1
        if self.buffered == self.buffer_size:
            self._aggregate()
        correction = self.corrections.pop(update.client)
        if update.steps:
            way = way_per_gradient(self.setting.work, update.steps, self.tasks[update.client] - 1)
            self.variates.put(update.client, delta.div_(-way).sub_(correction))

    def left(self, client: int, now: float) -> Orders:
        self.variates.forget(client)
        self.corrections.pop(client, None)
        return super().left(client, now)

    def forget(self, client: int) -> None:
        self.tasks.pop(client, None)
        self._empty()
        self.momentum.zero_()
        self.mean_square.zero_()
        super().forget(client)

    def _aggregate(self) -> None:
        mean = self.buffer / self.weights
        self.momentum.lerp_(mean, 1 - self.beta1)
        self.mean_square.lerp_(mean.square(), 1 - self.beta2)
        step = self.momentum.lerp(mean, 1 - self.beta1).mul_(self.server_lr).div_(self.mean_square.sqrt() + EPSILON)
        parameters = self.setting.schema.parameter_count
        step[parameters:] = mean[parameters:]
        self.model.step(step)
        self._empty()

    def _empty(self) -> None:
        self.buffered, self.weights = 0, 0.0
        self.buffer.zero_()


def way_per_gradient(work: Work, steps: int, count: int) -> float:
    """``lr h``: how far SGD goes against a gradient of 1 in so many steps of a client's task after ``count`` others."""
    mu = work.momentum
    coefficients = (steps - mu * (1 - mu**steps) / (1 - mu)) / (1 - mu)
    return rate_at(work.lr, count) * coefficients
