"""CDFL: client-driven federated learning for dynamic mixtures of distributions (Zhu and Li), Algorithms 1 and 2.

A client whose data are a mixture of K clusters trains the one model it has and hands it in whenever it likes. The
server estimates that mixture, learns from the model, and answers with one model made for the mixture."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.orders import Objective, Train
from polytempo.strategies.base.strategy import Presets, strategy
from polytempo.strategies.parts.mixtures import Mixtures
from polytempo.strategies.parts.proxies import proxy_sets


@strategy("cdfl")
class CDFL(Mixtures):
    """On a model v that was trained from u of version tau: ``t <- t + 1``, estimate the mixture a, move every cluster
    model that it concerns, ``w_k <- lerp(w_k, v, beta0 beta_1k beta_2)``, and answer ``sum_k a_k w_k``. With an age
    over tau0 the client is deprecated: it changes no cluster model, and its answer uses a fresh estimate; with
    ``ages="updates"`` its last mixture, as Algorithm 1 has it, which is much worse.

    The estimate goes by where v - u points: how much is in it of what each proxy set teaches (``lessons_in``), in units
    of how far that usually differs between clusters (``standardised_mixture``). It takes no forward pass, and the level
    of losses does not change it. ``estimate="paper"`` is Algorithm 2's, from losses and distances
    (``estimated_mixture``)."""

    estimate: Literal["direction", "paper"] = Field(
        "direction",
        description="direction: by where the client's training led; paper: Algorithm 2, by losses and distances",
    )
    sharpness: float | None = Field(
        None,
        gt=0,
        description="A, how far estimates stand out (default 1, for K = 2 0.71; of the paper's estimate 6 K (K - 1))",
    )
    c1: float = Field(0.8, ge=0, le=1, description="paper's estimate: weight of the loss on the proxy sets")
    c2: float = Field(0.1, ge=0, le=1, description="paper's estimate: weight of the difference to the models' losses")
    l_bar: float = Field(0.0, description="paper's estimate: subtracted from each loss")
    d1_bar: float = Field(0.0, description="paper's estimate: what is taken off the differences of losses")
    d2_bar: float = Field(0.0, description="paper's estimate: what is taken off the distances")
    b1_bar: float | None = Field(None, ge=0, le=1, description="least share that moves a cluster (default 1/(2 K))")
    tau0: float | None = Field(None, gt=0, description="age from which a client is deprecated (default 4; paper 20 K)")
    rho: float = Field(0.1, ge=0, description="of the clients' proximal term, to the model they were answered with")

    presets: ClassVar[Presets] = {"paper": {"ages": "updates", "estimate": "paper"}}
    revision = 1

    @model_validator(mode="after")
    def _can_estimate(self) -> "CDFL":
        if self.c1 + self.c2 > 1:
            raise ValueError(
                f"c1 + c2 is {self.c1 + self.c2:g}, and the distances have the weight 1 - c1 - c2: lower c1 or c2"
            )
        if self.estimate == "direction" and not self.specialise:
            raise ValueError(
                "specialise is 0, so that all cluster models are one and no direction tells clusters apart: raise it, "
                "or take estimate=paper"
            )
        return self

    def setup(self) -> None:
        super().setup()
        self.spreads: dict[int, float] = {}
        """Client -> the variance, over clusters, of how much of each lesson its last update shows."""
        if self.estimate == "direction":
            self.readers = readers(self.cluster_models())
        else:
            proxies = proxy_sets(self.setting)
            self.losses = np.array([proxies.loss(cluster.weights, k) for k, cluster in enumerate(self.clusters)])
            """``F(w_k; D_k)``"""

    def resolved(self) -> dict[str, Any]:
        k = self.k
        return super().resolved() | {
            "sharpness": self._usual_sharpness() if self.sharpness is None else self.sharpness,
            "b1_bar": 1 / (2 * k) if self.b1_bar is None else self.b1_bar,
            "tau0": (4.0 if self.ages == "clients" else 20.0 * k) if self.tau0 is None else self.tau0,
        }

    def _usual_sharpness(self) -> float:
        """By direction, what fits mixtures as the paper draws them, with a largest share of 40 to 90 %, on any data."""
        if self.estimate == "paper":
            return 6.0 * self.k * (self.k - 1)
        return 0.5**0.5 if self.k == 2 else 1.0

    def order_for(self, client: int, now: float) -> Train:
        served = Branch(self.model_for(client), self.t)
        return self.train(client, served, objective=Objective(proximal=self.rho))

    def updated(self, update: Update, now: float) -> None:
        self.t += 1
        used, age = self.resolved(), self.age(update)
        deprecated = age > used["tau0"]
        if deprecated and self.ages == "updates":
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

    def forget(self, client: int) -> None:
        self.spreads.pop(client, None)
        super().forget(client)

    def _estimate(self, update: Update) -> np.ndarray | None:
        """None where an update says nothing: it did not move, or is not finite."""
        return self._by_direction(update) if self.estimate == "direction" else self._by_losses(update)

    def _by_direction(self, update: Update) -> np.ndarray | None:
        learnt = lessons_in(update.own.delta, self.readers)
        if not np.isfinite(learnt).all():
            return None
        self.spreads[update.client] = float(learnt @ learnt) / max(self.k - 1, 1)
        usual = float(np.mean(list(self.spreads.values())))
        return standardised_mixture(learnt, usual, self.resolved()["sharpness"])

    def _by_losses(self, update: Update) -> np.ndarray | None:
        losses = proxy_sets(self.setting).losses(update.weights)
        distances = np.array([float((update.weights - cluster.weights).norm()) for cluster in self.clusters])
        measures = (losses - self.l_bar, np.abs(self.losses - losses) - self.d1_bar, distances - self.d2_bar)
        if not np.isfinite(measures).all():
            return None
        return estimated_mixture(measures, (self.c1, self.c2, 1 - self.c1 - self.c2), self.resolved()["sharpness"])

    def _learn(self, update: Update, ratios: np.ndarray) -> None:
        for k in np.flatnonzero(ratios).tolist():
            self.clusters[k].mix(update.weights, float(ratios[k]))
            if self.estimate == "paper" and self.c2:  # otherwise nobody looks at them, and a pass is saved
                self.losses[k] = proxy_sets(self.setting).loss(self.clusters[k].weights, k)


def readers(models: Sequence[Tensor]) -> Tensor:
    """A lesson is what a proxy set taught its cluster's model and not the others': ``l_k = w_k - mean_j w_j``. The rows
    r_k tell by ``r_k . x`` how much of lesson k is in x: the c_k of ``min ||x - sum_k c_k l_k||`` with the sum 0."""
    stacked = torch.stack(list(models))
    lessons = stacked - stacked.mean(0)
    gram = np.nan_to_num((lessons @ lessons.T).double().numpy(), posinf=0.0, neginf=0.0)
    inverse = np.linalg.pinv(gram, rcond=1e-5, hermitian=True)  # one of its eigenvalues is 0: lessons have the sum 0
    return torch.from_numpy(inverse).to(lessons.dtype) @ lessons


def lessons_in(delta: Tensor, readers: Tensor) -> np.ndarray:
    """How much of each lesson is in what a client learnt, whatever its length; NaN if it learnt nothing, or so much
    that its length is infinite."""
    length = float(delta.norm())
    direction = delta / (length if length < np.inf else np.nan)
    return (readers @ direction).double().numpy()


def standardised_mixture(learnt: np.ndarray, usual: float, sharpness: float) -> np.ndarray:
    """``a = softmax(A c / s)``, s^2 the usual variance of a client's c_k over the clusters. Where nobody's differ all
    shares are equal."""
    deviations = learnt / usual**0.5 if usual else np.zeros(len(learnt))
    raised = np.exp(sharpness * (deviations - deviations.max()))
    return raised / raised.sum()


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
