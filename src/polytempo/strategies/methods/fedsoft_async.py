"""FedSoft-Async: FedSoft, soft clustered federated learning with proximal local updating (Ruan and Joe-Wong, 2022),
made asynchronous as CDFL's authors compare with it.

The estimate of the mixture is the client's: it is sent all K cluster models."""

import numpy as np
from pydantic import Field

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.orders import Candidates, Objective, Train
from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.parts.mixtures import Mixtures


@strategy("fedsoft-async")
class FedSoftAsync(Mixtures):
    """A client is sent all cluster models c_k, takes as its mixture the shares u_k of its samples that each of them
    serves best, and trains with ``lambda/2 sum_k u_k ||w - c_k||^2``; then ``c_k <- lerp(c_k, w, beta0 u_k s)`` with
    CDFL's s for the age of the update."""

    proximal: float = Field(0.1, ge=0, description="lambda, how strongly clients stay near the cluster models")

    def order_for(self, client: int, now: float) -> Train:
        offered = Candidates(tuple(self.cluster_models()), (self.t,) * self.k, "mixture")
        served = Branch(self.model_for(client), self.t)
        return self.train(client, served, objective=Objective(proximal=self.proximal), candidates=offered)

    def updated(self, update: Update, now: float) -> None:
        self.t += 1
        shares = self._shares(update)
        self.shares[update.client] = shares
        for k in np.flatnonzero(shares).tolist():
            self.clusters[k].mix(update.weights, self.beta0 * shares[k] * self.freshness(self.age(update)))

    def observed(self, update: Update, now: float) -> None:
        self.shares[update.client] = self._shares(update)

    def _shares(self, update: Update) -> np.ndarray:
        """What the client says, unless these are no shares: then what was last known."""
        try:
            shares = np.array(update.answers.get("shares"), np.float64)
        except (TypeError, ValueError, OverflowError):
            return self.shares_of(update.client)
        fits = shares.shape == (self.k,) and bool((shares >= 0).all()) and abs(float(shares.sum()) - 1) < 1e-3
        return shares / shares.sum() if fits else self.shares_of(update.client)
