"""Mixtures: K cluster models, and clients whose data are mixtures of the clusters' (CDFL and FedSoft-Async)."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.strategies.base.strategy import Presets, Strategy, parameters
from polytempo.strategies.parts.proxies import proxy_sets
from polytempo.strategies.parts.staleness import Hinge


@parameters
class Mixtures(Strategy):
    """The server keeps one model w_k per cluster, begun on that cluster's proxy set from one common model. A client is
    served ``sum_k a_k w_k``, a its last known mixture (uniform if it has none). ``t`` counts updates.

    The age of an update, ``t - tau``, counts in clients that are there: 1 is as many updates as come when everybody
    hands in once. Counted in updates, as the paper does, an age that is usual among many clients would be a great one
    and its numbers freeze the clusters."""

    preset: Literal["ours", "paper"] = Field("ours", description="paper: its rules and numbers")
    ages: Literal["clients", "updates"] = Field(
        "clients", description="unit of an update's age: clients, or updates (the paper, with its numbers)"
    )
    beta0: float = Field(0.025, gt=0, le=1, description="the most that an update moves a cluster model")
    a: float = Field(10.0, ge=0, description="how fast older updates count less")
    b: float | None = Field(None, ge=0, description="age up to which an update counts in full (default 1; paper 5)")
    specialise: int = Field(5, ge=0, description="epochs of each cluster model on its own proxy set at the beginning")

    presets: ClassVar[Presets] = {"paper": {"ages": "updates"}}
    needs_proxies = True
    unmixable = "an update moves several cluster models at once, each by its share"

    def setup(self) -> None:
        first = proxy_sets(self.setting).specialised(self.setting.initial, self.specialise)
        self.clusters = [Branch(weights) for weights in first]
        self.t = 0
        self.shares: dict[int, np.ndarray] = {}
        """Client -> its last known mixture."""

    def resolved(self) -> dict[str, Any]:
        return {"b": (1.0 if self.ages == "clients" else 5.0) if self.b is None else self.b}

    def age(self, update: Update) -> float:
        """How old the model is that the update came from."""
        unit = max(len(self.participation.members), 1) if self.ages == "clients" else 1
        return (self.t - update.version) / unit

    def freshness(self, age: float) -> float:
        """How much an update counts (CDFL, Algorithm 2: beta_2): ``1 if age <= b else 1 / (a (age - b) + 1)``; in the
        paper ``1 if age < b else 1 / (a age + 1)``, which falls to a tenth at b, an age that is usual in clients.
        The paper's age is ``e_k - tau`` with e_k the last time that cluster k was moved; where an update moves it that
        is now."""
        b = self.resolved()["b"]
        if self.ages == "updates":
            return 1.0 if age < b else 1 / (self.a * age + 1)
        return Hinge(self.a, b)(age)

    def forget(self, client: int) -> None:
        self.shares.pop(client, None)
        super().forget(client)

    def model_for(self, client: int) -> Tensor:
        return self.mixed(self.shares_of(client))

    def cluster_of(self, client: int) -> int:
        """The cluster with the largest share."""
        return int(self.shares_of(client).argmax())

    def tau(self, update: Update) -> int:
        return self.t - update.version

    def mixture(self, client: int) -> np.ndarray | None:
        return self.shares.get(client)

    def cluster_models(self) -> Sequence[Tensor]:
        return [cluster.weights for cluster in self.clusters]

    @property
    def k(self) -> int:
        return len(self.clusters)

    def shares_of(self, client: int) -> np.ndarray:
        return self.shares[client] if client in self.shares else np.full(self.k, 1 / self.k)

    def mixed(self, shares: np.ndarray) -> Tensor:
        """``sum_k a_k w_k``"""
        first, *others = self.clusters
        model = first.weights * float(shares[0])
        for share, cluster in zip(shares[1:].tolist(), others, strict=True):
            model.add_(cluster.weights, alpha=share)
        return model
