"""FedSaC: balancing similarity and complementarity for federated learning (Yan et al., ICML 2024), its naive
asynchronous form and PACE as a plug-in (Liu et al., PACE, sections V-A and V-C).

Similarity is pFedGraph's. Complementarity is measured by the mean principal angle between the subspaces of the
clients' last-layer features, of which Yan et al. take the cosine; it and similarity have weights of their own (beta
and gamma)."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from polytempo.core.events import Update
from polytempo.core.model.rows import Sums
from polytempo.strategies.base.strategy import parameters, strategy
from polytempo.strategies.methods.pfedgraph import GraphWeights, unlikeness
from polytempo.strategies.parts.buffered_collaboration import BufferedCollaboration
from polytempo.strategies.parts.collaboration import CollaborationRounds, NaiveCollaboration
from polytempo.strategies.parts.graph import project_simplex

SUBSPACE = "feature-subspace"
ROUNDING = 1e-3


@parameters
class ComplementaryWeights(GraphWeights):
    """``W_i = argmin ||W - p||^2 + (gamma s_i - beta c_i) . W`` on the simplex, ``c_ij = -cos(mean principal angle)``
    between the feature subspaces of clients i and j: like models are wanted, and unlike features."""

    beta: float = Field(1.5, ge=0, description="how much complementarity counts")

    questions = (SUBSPACE,)

    def setup(self) -> None:
        super().setup()
        self.subspaces: dict[int, np.ndarray] = {}
        """Client -> directions x features, orthonormal rows, as it last answered."""

    def note(self, update: Update) -> None:
        super().note(update)
        basis = as_basis(update.answers.get(SUBSPACE))
        if basis is not None:
            self.subspaces[update.client] = basis

    def forget(self, client: int) -> None:
        self.subspaces.pop(client, None)
        super().forget(client)

    def weigh(self, index: int, sums: Sums, p: np.ndarray, clients: np.ndarray) -> np.ndarray:
        complementarity = -np.cos(mean_angles(int(clients[index]), clients.tolist(), self.subspaces))
        return project_simplex(
            p - (self.gamma * unlikeness(self.metric, index, sums) - self.beta * complementarity) / 2
        )


@strategy("fedsac")
class FedSaC(ComplementaryWeights, CollaborationRounds):
    """pFedGraph whose rows also ask for complementary clients: ``W_i = project(p - (gamma s_i - beta c_i) / 2)``."""


@strategy("fedsac-async")
class FedSaCAsync(ComplementaryWeights, NaiveCollaboration):
    """FedSaC without rounds, naively: over the latest model of everyone, however old."""


@strategy("fedsac-pace")
class FedSaCPace(ComplementaryWeights, BufferedCollaboration):
    """FedSaC's weights with PACE's buffers, staleness decay and broadcasts."""


def as_basis(answer: Any) -> np.ndarray | None:
    """A client's answer as directions x features, orthonormal but for rounding; None for anything else, since clients
    may send what they like."""
    try:
        basis = np.asarray(answer, float)
    except (TypeError, ValueError, OverflowError):
        return None
    if basis.ndim != 2 or not 0 < len(basis) <= basis.shape[1] or not (np.abs(basis) <= 1 + ROUNDING).all():
        return None
    return basis if (np.abs(basis @ basis.T - np.eye(len(basis))) <= ROUNDING).all() else None


def mean_angles(client: int, clients: Sequence[int], subspaces: Mapping[int, np.ndarray]) -> np.ndarray:
    """The mean principal angle between a client's subspace and that of each of these clients, 0 for its own. Somebody
    without an answer of the same shape (fewer samples than directions, say) counts as the mean of the others."""
    mine = subspaces.get(client)
    if mine is None:
        return np.zeros(len(clients))
    others = [index for index, other in enumerate(clients) if other != client]
    known = [index for index in others if getattr(subspaces.get(clients[index]), "shape", ()) == mine.shape]
    angles = np.zeros(len(clients))
    if known:
        cosines = np.linalg.svd(np.stack([subspaces[clients[index]] for index in known]) @ mine.T, compute_uv=False)
        found = np.arccos(np.clip(cosines, 0, 1)).mean(axis=1)
        angles[others] = found.mean()
        angles[known] = found
    return angles
