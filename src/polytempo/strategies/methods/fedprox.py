"""FedProx: federated optimization in heterogeneous networks (Li et al., 2020), Algorithm 2."""

from pydantic import Field

from polytempo.core.orders import Objective, Train
from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.methods.fedavg import FedAvg


@strategy("fedprox")
class FedProx(FedAvg):
    """FedAvg whose clients stay near the model they got: local loss ``+ mu/2 ||w - w_start||^2``."""

    mu: float = Field(0.05, ge=0, description="weight of the proximal term; .05 in CASA's tables, .5 in PACE's")

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self.model, objective=Objective(proximal=self.mu))
