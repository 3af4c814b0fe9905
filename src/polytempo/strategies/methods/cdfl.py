"""CDFL: client-driven federated learning for dynamic mixtures of distributions (Zhu and Li), Algorithms 1 and 2.

A client whose data are a mixture of K clusters trains the one model it has and hands it in whenever it likes. The
server judges that model on its proxy sets D_k, learns from it, and answers with one model made for that mixture."""

from typing import Any

import numpy as np
from pydantic import Field, model_validator

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.orders import Objective, Train
from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.parts.mixtures import Mixtures
from polytempo.strategies.parts.proxies import proxy_sets


@strategy("cdfl")
class CDFL(Mixtures):
    """On a model v that came from version tau: ``t <- t + 1``, estimate the mixture a (``estimated_mixture``), move
    every cluster model that it concerns, ``w_k <- lerp(w_k, v, beta0 beta_1k beta_2)``, and answer
    ``sum_k a_k w_k``. With an age over tau0 the client is deprecated: it changes no cluster model, and its answer uses
    a fresh estimate; with ``preset="paper"`` its last mixture, as Algorithm 1 has it, which is much worse."""

    c1: float = Field(0.8, ge=0, le=1, description="weight of the loss on the proxy sets in the estimate")
    c2: float = Field(0.1, ge=0, le=1, description="weight of the difference to the cluster models' losses")
    sharpness: float | None = Field(None, gt=0, description="A, how far estimates stand out (default 6 K (K - 1))")
    l_bar: float = Field(0.0, description="what is taken off the losses")
    d1_bar: float = Field(0.0, description="what is taken off the differences of losses")
    d2_bar: float = Field(0.0, description="what is taken off the distances")
    b1_bar: float | None = Field(None, ge=0, le=1, description="least share that moves a cluster (default 1/(2 K))")
    tau0: float | None = Field(None, gt=0, description="age from which a client is deprecated (default 4; paper 20 K)")
    rho: float = Field(0.1, ge=0, description="of the clients' proximal term, to the model they were answered with")

    @model_validator(mode="after")
    def _weights_of_the_estimate(self) -> "CDFL":
        if self.c1 + self.c2 > 1:
            raise ValueError(
                f"c1 + c2 is {self.c1 + self.c2:g}, and the distances have the weight 1 - c1 - c2: lower c1 or c2"
            )
        return self

    def setup(self) -> None:
        super().setup()
        proxies = proxy_sets(self.setting)
        self.losses = np.array([proxies.loss(cluster.weights, k) for k, cluster in enumerate(self.clusters)])
        """``F(w_k; D_k)``"""

    def resolved(self) -> dict[str, Any]:
        k, paper = self.k, self.preset == "paper"
        return super().resolved() | {
            "sharpness": 6.0 * k * (k - 1) if self.sharpness is None else self.sharpness,
            "b1_bar": 1 / (2 * k) if self.b1_bar is None else self.b1_bar,
            "tau0": (20.0 * k if paper else 4.0) if self.tau0 is None else self.tau0,
        }

    def order_for(self, client: int, now: float) -> Train:
        served = Branch(self.model_for(client), self.t)
        return self.train(client, served, objective=Objective(proximal=self.rho))

    def updated(self, update: Update, now: float) -> None:
        self.t += 1
        used, age = self.resolved(), self.age(update)
        deprecated = age > used["tau0"]
        if deprecated and self.preset == "paper":
            return
        shares = self._estimate(update)
        if shares is None:
            return
        self.shares[update.client] = shares
        if not deprecated:
            self._learn(update, self.beta0 * self.freshness(age) * relevance(shares, used["b1_bar"]))

    def observed(self, update: Update, now: float) -> None:
        shares = self._estimate(update)
        if shares is not None:
            self.shares[update.client] = shares

    def _estimate(self, update: Update) -> np.ndarray | None:
        """None for a model so large that its loss is no number."""
        losses = proxy_sets(self.setting).losses(update.weights)
        distances = np.array([float((update.weights - cluster.weights).norm()) for cluster in self.clusters])
        measures = (losses - self.l_bar, np.abs(self.losses - losses) - self.d1_bar, distances - self.d2_bar)
        if not np.isfinite(measures).all():
            return None
        return estimated_mixture(measures, (self.c1, self.c2, 1 - self.c1 - self.c2), self.resolved()["sharpness"])

    def _learn(self, update: Update, ratios: np.ndarray) -> None:
        for k in np.flatnonzero(ratios).tolist():
            self.clusters[k].mix(update.weights, float(ratios[k]))
            if self.c2:  # who looks at them? a pass over the set of every cluster that moved is saved otherwise
                self.losses[k] = proxy_sets(self.setting).loss(self.clusters[k].weights, k)


def estimated_mixture(measures: tuple[np.ndarray, ...], weights: tuple[float, ...], sharpness: float) -> np.ndarray:
    """Algorithm 2: ``a = softmax(A score)``, ``score_k = 1/(K-1) sum_j c_j (1 - m_jk / sum_i m_ji)`` over the measures
    m_j, of each of which less speaks for a cluster. A measure that sums to 0 counts as an even split."""
    k = len(measures[0])
    if k == 1:
        return np.ones(1)
    score = np.zeros(k)
    for measure, weight in zip(measures, weights, strict=True):
        total = measure.sum()
        score += weight * (1 - (measure / total if total else 1 / k)) / (k - 1)
    raised = np.exp(sharpness * (score - score.max()))
    return raised / raised.sum()


def relevance(shares: np.ndarray, least: float) -> np.ndarray:
    """How much an update matters to each cluster (Algorithm 2: beta_1): ``0 if a_k < least else a_k / max a``."""
    return np.where(shares < least, 0.0, shares / shares.max())
