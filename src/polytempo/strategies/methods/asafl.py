"""ASAFL, reconstructed: an adaptive asynchronous federated learning framework for heterogeneous internet of things
(Zhang et al., 2025).

A search of public pages and code found neither its authors' paper nor code. It is known here only from PACE's
comparison: it weights the aggregation adaptively by how far models diverge, and has a server learning rate eta_s = .01
and a client learning rate eta_c = .01. This is the plainest method that fits: one update at a time, and a share that
falls with the Euclidean distance between the client's model and the server's, with eta_s as the share at no distance.
That is small: the model learns evenly and slowly (a mixing of .6, FedAsync's, is faster and less even)."""

import torch
from pydantic import Field

from polytempo.core.events import Update
from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.parts.asynchronous import Asynchronous


@strategy("asafl")
class ASAFL(Asynchronous):
    """Reconstructed: mix each update into the global model, less the farther away it is:
    ``w <- lerp(w, w_i, eta_s / (1 + ||w_i - w||))``."""

    reconstructed = True

    mixing: float = Field(0.01, gt=0, le=1, description="eta_s, the share of an update that is no distance away")

    def updated(self, update: Update, now: float) -> None:
        distance = float(torch.dist(update.weights, self.model.weights))
        self.model.mix(update.weights, self.mixing / (1 + distance))
