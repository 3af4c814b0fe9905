"""FedAMP: personalized cross-silo federated learning on non-IID data (Huang et al., AAAI 2021), its naive asynchronous
form and PACE as a plug-in (Liu et al., PACE, sections V-A and V-C).

Huang et al. let every client take part in every round. Where only some do, attention is over the members of the
round. A client begins from the model that its objective holds it to."""

import numpy as np
from pydantic import Field
from torch import Tensor

from polytempo.core.model.rows import Compare, Sums, meet_rows
from polytempo.core.orders import Objective
from polytempo.strategies.base.strategy import parameters, strategy
from polytempo.strategies.parts.buffered_collaboration import BufferedCollaboration
from polytempo.strategies.parts.collaboration import Collaboration, CollaborationRounds, NaiveCollaboration


@parameters
class AttentiveWeights(Collaboration):
    """``W_ii = own_share``, and the rest goes to the others in proportion to ``exp(-||theta_i - theta_j||^2 / sigma)``:
    the nearer, the more attention. Local loss ``+ proximal/2 ||w - received model||^2``."""

    own_share: float = Field(0.7, ge=0, le=1, description="xi_ii, the weight of a client's own model")
    sigma: float = Field(10.0, gt=0, description="squared distance at which attention has fallen by e")
    proximal: float = Field(1.0, ge=0, description="lambda, of the local loss: + lambda/2 ||w - received model||^2")

    def meet(self, client: int, vector: Tensor, models: Tensor, clients: np.ndarray, shares: np.ndarray | None) -> Sums:
        return meet_rows(models, vector, Compare.SQUARES, None, shares)

    def weigh(self, index: int, sums: Sums, p: np.ndarray, clients: np.ndarray) -> np.ndarray:
        if len(clients) == 1:
            return np.ones(1)
        others = np.delete(np.arange(len(clients)), index)
        # counted from the nearest, since all may be so far away that exp is 0
        attention = np.exp((sums.values[others].min() - sums.values[others]) / self.sigma)
        row = np.full(len(clients), self.own_share)
        row[others] = (1 - self.own_share) * attention / attention.sum()
        return row

    def objective(self) -> Objective:
        return Objective(proximal=self.proximal)


@strategy("fedamp")
class FedAMP(AttentiveWeights, CollaborationRounds):
    """Attentive message passing in rounds: ``u_i = .7 theta_i + .3 sum_j xi_ij theta_j``, the nearer j the more."""


@strategy("fedamp-async")
class FedAMPAsync(AttentiveWeights, NaiveCollaboration):
    """FedAMP without rounds, naively: over the latest model of everyone, however old."""


@strategy("fedamp-pace")
class FedAMPPace(AttentiveWeights, BufferedCollaboration):
    """FedAMP's weights and local objective with PACE's buffers, staleness decay and broadcasts."""
