"""FedAsync: asynchronous federated optimization (Xie et al., 2019), Algorithm 1."""

from pydantic import Field

from polytempo.core.events import Update
from polytempo.core.orders import Objective, Train
from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.parts.asynchronous import Asynchronous
from polytempo.strategies.parts.staleness import Polynomial, Staleness


@strategy("fedasync")
class FedAsync(Asynchronous):
    """Mix each update into the global model, less the staler it is: ``w <- lerp(w, w_i, alpha s(tau_i))``. Clients may
    stay near the model they got: local loss ``+ proximal/2 ||w - w_start||^2``."""

    mixing: float = Field(0.6, gt=0, le=1, description="alpha, the share of a fresh update in the new model")
    staleness: Staleness = Field(Polynomial(0.5), description="s(tau): constant, polynomial:A or hinge:A:B")
    proximal: float = Field(0.0, ge=0, description="weight of the proximal term in the clients' loss")

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self.model, objective=Objective(proximal=self.proximal))

    def updated(self, update: Update, now: float) -> None:
        self.model.mix(update.weights, self.mixing * self.staleness(self.tau(update)))
