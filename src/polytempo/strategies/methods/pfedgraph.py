"""pFedGraph: personalized federated learning with inferred collaboration graphs (Ye et al., ICML 2023), and its naive
asynchronous form (Liu et al., PACE, section V-A).

Ye et al. compare what the clients' models have learnt since the common initial model and average over the members of
a round; both are done here. Their solver of the quadratic programme is replaced by its closed form."""

from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.model.rows import Compare, Sums, meet_rows
from polytempo.core.orders import Objective
from polytempo.strategies.base.strategy import parameters, strategy
from polytempo.strategies.parts.collaboration import Collaboration, CollaborationRounds, NaiveCollaboration
from polytempo.strategies.parts.graph import project_simplex
from polytempo.strategies.parts.model_table import ModelTable

Metric = Literal["cosine", "inner", "l1", "l2"]
SUMS = {"cosine": Compare.PRODUCTS, "inner": Compare.PRODUCTS, "l1": Compare.ABSOLUTES, "l2": Compare.SQUARES}


@parameters
class GraphWeights(Collaboration):
    """``W_i = argmin ||W - p||^2 + gamma s_i . W`` on the simplex (Eq. 2 of PACE), which is the projection of
    ``p - gamma/2 s_i``; s_ij is how unlike the models of clients i and j are."""

    gamma: float = Field(1.5, ge=0, description="how much likeness counts beside the sizes of the data")
    metric: Metric = Field("cosine", description="how likeness is measured: cosine, inner (product), l1 or l2")
    compared: Literal["initial", "weights", "delta"] = Field(
        "initial", description="of what: initial (the difference to the initial model), weights (raw) or delta (last)"
    )
    cosine: float = Field(0.01, ge=0, description="lambda, of the local loss: + lambda (1 - cos(w, received model))")

    def setup(self) -> None:
        super().setup()
        self.deltas = ModelTable(torch.zeros_like(self.setting.initial))
        """What everybody learnt in its last round; kept only where that is compared."""

    def note(self, update: Update) -> None:
        super().note(update)
        if self.compared == "delta":
            self.deltas.reach(update.client)
            self.deltas.put(update.client, update.delta)

    def forget(self, client: int) -> None:
        if client in self.deltas:
            self.deltas.put(client, self.deltas.initial)
        super().forget(client)

    def meet(self, client: int, vector: Tensor, models: Tensor, clients: np.ndarray, shares: np.ndarray | None) -> Sums:
        compare = SUMS[self.metric]
        if self.compared != "delta":
            origin = self.setting.initial if self.compared == "initial" else None
            return meet_rows(models, vector, compare, origin, shares)
        self.deltas.reach(int(clients[-1]))
        if shares is not None:
            meet_rows(models, vector, Compare.NOTHING, None, shares)
        return meet_rows(self.deltas.matrix, self.deltas.view(client), compare).of(clients)

    def weigh(self, index: int, sums: Sums, p: np.ndarray, clients: np.ndarray) -> np.ndarray:
        return project_simplex(p - self.gamma / 2 * unlikeness(self.metric, index, sums))

    def objective(self) -> Objective:
        return Objective(cosine=self.cosine)


@strategy("pfedgraph")
class PFedGraph(GraphWeights, CollaborationRounds):
    """Rounds in which everybody gets the mean of the round's models that its row of the collaboration graph asks for:
    ``u_i = sum_j W_ij theta_j``."""


@strategy("pfedgraph-async")
class PFedGraphAsync(GraphWeights, NaiveCollaboration):
    """pFedGraph without rounds, naively: over the latest model of everyone, however old."""


def unlikeness(metric: Metric, index: int, sums: Sums) -> np.ndarray:
    """``s_ij`` for the client with this index. Cosine: ``-cos``, 0 for a zero vector. Inner product (negative), L1, L2:
    divided by the mean of their absolute values over the row, or every row would collapse to the client itself."""
    if metric == "cosine":
        lengths = np.sqrt(sums.row_squares * sums.row_squares[index])
        found = -np.divide(sums.values, lengths, out=np.zeros(len(lengths)), where=lengths > 0)
        found[index] = -1
        return found
    found = -sums.values if metric == "inner" else np.sqrt(sums.values) if metric == "l2" else sums.values
    scale = np.abs(found).mean()
    return found / scale if scale > 0 else found
