"""FedAvgM: measuring the effects of non-identical data distribution (Hsu et al., 2019), section 5: server momentum."""

from collections.abc import Sequence

import torch
from pydantic import Field

from polytempo.core.events import Update
from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.parts.rounds import Rounds, mean_delta


@strategy("fedavgm")
class FedAvgM(Rounds):
    """FedAvg with momentum on the server: ``v <- beta v + mean delta; w <- w + v``."""

    server_momentum: float = Field(0.9, ge=0, lt=1, description="beta, the share of the last step that is kept")

    def setup(self) -> None:
        self.velocity = torch.zeros_like(self.setting.initial)

    def aggregate(self, updates: Sequence[Update], now: float) -> None:
        self.velocity.mul_(self.server_momentum).add_(mean_delta(updates))
        self.model.step(self.velocity)

    def forget(self, client: int) -> None:
        self.velocity.zero_()
        super().forget(client)
