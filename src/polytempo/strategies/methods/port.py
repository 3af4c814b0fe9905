"""PORT: how asynchronous can federated learning be? (Su and Li, 2022), with the settings of PACE's comparison.

The weights are those of the paper. Its authors' code, in Plato, does not look at the direction of an update that is at
most one version old: ``preset="plato"``. Older updates it compares with what separates the server's model from the one
that round r - 2 made. In round r the server has the model of round r - 1, so this is the last step, as in the paper."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.orders import Orders, Report, Train
from polytempo.core.validation import OR_NONE
from polytempo.strategies.base.strategy import Presets, Strategy, strategy
from polytempo.strategies.parts.cosines import cosine, norm
from polytempo.strategies.parts.rounds import weighted_mean


@strategy("port")
class Port(Strategy):
    """Gather m deltas, then take one step, ``w <- w + sum_i q_i delta_i`` with
    ``q_i ~ n_i [a Omega / (tau_i + Omega) + b (1 + cos(delta_i, w_t - w_{t-1})) / 2]`` that sum to 1: the fresher an
    update is and the less it opposes the last step, the more it counts. Whoever is still training from a model more
    than Omega versions old is asked to report what it has. The cosine is 0 before the first step."""

    preset: Literal["paper", "plato"] = Field("paper", description="plato: as in the authors' code")
    trusted: Annotated[int | None, OR_NONE] = Field(
        None, ge=0, description="staleness up to which an update's cosine counts as 1, or none"
    )
    min_updates: int = Field(5, ge=1, description="m, updates per server step")
    freshness: float = Field(1.0, gt=0, description="a, weight of an update's freshness")
    agreement: float = Field(1.0, ge=0, description="b, weight of an update's agreement with the last step")
    staleness_bound: int = Field(10, ge=1, description="Omega, server steps after which a client is asked to report")

    presets: ClassVar[Presets] = {"plato": {"trusted": 1}}

    def setup(self) -> None:
        self.buffer: list[Update] = []
        self.last_step = torch.zeros_like(self.setting.initial)
        self.training: dict[int, int] = {}
        """Clients in training that were not yet asked to report, and the version they started from."""

    def order_for(self, client: int, now: float) -> Train:
        self.training[client] = self.model.version
        return self.train(client, self.model)

    def updated(self, update: Update, now: float) -> Orders:
        self.training.pop(update.client, None)
        self.buffer.append(update)
        if len(self.buffer) < self.min_updates:
            return None
        self._aggregate()
        return self._ask_the_stale()

    def left(self, client: int, now: float) -> Orders:
        """What the client handed in before still counts."""
        self.training.pop(client, None)
        return super().left(client, now)

    def forget(self, client: int) -> None:
        self.buffer = [update for update in self.buffer if update.client != client]
        self.last_step = torch.zeros_like(self.last_step)
        super().forget(client)

    def _aggregate(self) -> None:
        deltas = [update.delta for update in self.buffer]
        weights = [self._weight(update, delta) for update, delta in zip(self.buffer, deltas, strict=True)]
        step = weighted_mean(deltas, weights)
        self.model.step(step)
        self.last_step, self.buffer = step, []

    def _weight(self, update: Update, delta: Tensor) -> float:
        fresh = self.staleness_bound / (self.tau(update) + self.staleness_bound)
        return update.weight * (self.freshness * fresh + self.agreement * (1 + self._cosine(update, delta)) / 2)

    def _cosine(self, update: Update, delta: Tensor) -> float:
        if self.trusted is not None and self.tau(update) <= self.trusted:
            return 1.0
        return cosine(delta, self.last_step, norm(delta) * norm(self.last_step))

    def _ask_the_stale(self) -> list[Report]:
        oldest = self.model.version - self.staleness_bound
        stale = [client for client, version in self.training.items() if version < oldest]
        for client in stale:
            del self.training[client]
        return [Report(client) for client in stale]
