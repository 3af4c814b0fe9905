"""PACE's server (Liu et al., Algorithm 1), for any collaboration weights W.

The paper sends phi_i back before it is overwritten by what the client just trained, which loses the client's newest
training; here it is overwritten first, and a client gets its phi when it is next picked. Staleness counts updates
received since the model was sent. In a multicast clients go on with the steps that they have left. The paper's shares
p of the data are given; here the server learns a client's samples when it hands in, and takes the mean until then.
Every weight p counts as it was known when the update arrived, also in the sums over pi_j."""

import warnings

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.model.rows import Sums
from polytempo.core.orders import Orders, Send, Train
from polytempo.strategies.base.strategy import parameters
from polytempo.strategies.parts.collaboration import Collaboration
from polytempo.strategies.parts.staleness import Polynomial, Staleness

NOT_IN_TRAINING = -1


@parameters
class BufferedCollaboration(Collaboration):
    """PACE's server, whatever the weights W: one buffer phi_j per client. On theta_i: ``phi_i <- theta_i``; a new row
    W_i from theta_i and all phi_j; and for every other client ``phi_j <- lerp(phi_j, theta_i, alpha_ij)`` with
    ``alpha_ij = W_ji / (W_jj + sum over pi_j of W_j.) s(tau_i)`` (Eq. 5 and 11). Then, if the clients in training have
    become too stale, a multicast."""

    staleness: Staleness = Field(Polynomial(1.5), description="s(tau): constant, polynomial:A or hinge:A:B")
    omega: float = Field(
        2500, ge=0, description="Omega, sum of squared staleness of those in training that causes a multicast"
    )
    budget: int = Field(
        1_297_000, ge=0, description="P, bytes that one multicast may have (10 MHz for 300 ms); 0: no multicasts"
    )

    def setup(self) -> None:
        super().setup()
        self.passed = np.zeros(0)
        """For each client j ``sum over pi_j of W_j.``: of those whose models went into phi_j since j handed in."""
        self.started = np.zeros(0, np.int64)
        """The version from which each client trains."""
        if self.budget and not self.multicast_size():
            warnings.warn(
                f"One model has {self._model_bytes():,} bytes, more than the multicast budget of {self.budget:,}, so "
                "there will be no multicasts. Set budget higher, or to 0 if that is meant.",
                stacklevel=2,
            )

    def multicast_size(self) -> int:
        """How many models are within the budget."""
        return self.budget // self._model_bytes()

    def _model_bytes(self) -> int:
        return 4 * self.setting.schema.size

    def joined(self, client: int, now: float) -> Orders:
        orders = super().joined(client, now)
        more = len(self.graph) - len(self.started)
        self.started = np.pad(self.started, (0, more), constant_values=NOT_IN_TRAINING)
        self.started[client] = NOT_IN_TRAINING
        self.passed = np.pad(self.passed, (0, more))
        return orders

    def left(self, client: int, now: float) -> Orders:
        self.started[client] = NOT_IN_TRAINING
        return super().left(client, now)

    def forget(self, client: int) -> None:
        self.passed[client] = 0
        super().forget(client)

    def order_for(self, client: int, now: float) -> Train:
        self.started[client] = self.t
        return super().order_for(client, now)

    def updated(self, update: Update, now: float) -> list[Send]:
        """Algorithm 1: an asynchronous round t. The comparison and the mixing are one pass over all buffers."""
        client, theta, decay = update.client, update.weights, self.staleness(self.tau(update))
        self.t += 1
        self.note(update)
        self._replace_buffer(client, theta)  # line 7
        sums = self._update_buffers(client, theta, decay)  # lines 10 to 12
        self._estimate_row(client, sums)  # line 8
        return self._multicast()  # lines 14 to 16

    def _replace_buffer(self, client: int, theta: Tensor) -> None:
        """``phi_i <- theta_i``, and pi_i is empty; the client is not in training any more."""
        self.started[client] = NOT_IN_TRAINING
        self.models.put(client, theta)
        self.passed[client] = 0

    def _update_buffers(self, client: int, theta: Tensor, decay: float) -> Sums:
        """``phi_j <- lerp(phi_j, theta_i, alpha_ij)`` for every other client (Eq. 5 and 11); how theta_i compares with
        each phi_j as it was before. A model too large to be compared teaches nobody."""
        too_large = not torch.isfinite(torch.dot(theta, theta))
        alpha = None if too_large else self._count_passed(client) * decay
        return self.meet(client, theta, self.models.matrix, np.arange(len(self.graph)), alpha)

    def _count_passed(self, client: int) -> np.ndarray:
        """Client i becomes part of each pi_j (repeats count); ``W_ji / (W_jj + sum over pi_j of W_j.)`` for every j
        (Eq. 6 and 10), 0 for i itself."""
        taken = self.graph.column(client)
        taken[client] = 0
        self.passed += taken
        total = self.graph.own() + self.passed
        return np.divide(taken, total, out=np.zeros(len(total)), where=total > 0)

    def _estimate_row(self, client: int, sums: Sums) -> None:
        """W_i over all who ever joined (Eq. 2)."""
        clients = self.graph.clients()
        self.graph.put(client, clients, self.row(client, sums.of(clients), self.graph.p()[clients], clients))

    def _multicast(self) -> list[Send]:
        """The stalest clients in training, as many as the budget allows; if the sum of their squared staleness exceeds
        Omega (Eq. 16), each is sent its buffer, and its staleness restarts."""
        staleness = np.where(self.started == NOT_IN_TRAINING, 0, self.t - self.started)
        stalest = np.argsort(-staleness, kind="stable")[: self.multicast_size()]
        stalest = stalest[staleness[stalest] > 0]
        if float((staleness[stalest] ** 2).sum()) <= self.omega:
            return []
        self.started[stalest] = self.t
        return [Send(client, self.models.copy(client), self.t) for client in stalest.tolist()]
