"""Collaboration: every client has a model of its own, made of everybody's by the weights of a graph. How the weights
come about is a method's (pFedGraph, FedAMP, FedSaC); when they are used is here, in rounds or naively at any time, and
in ``buffered_collaboration.py``, which keeps both true under staleness."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polytempo.core.errors import StrategyError
from polytempo.core.events import Update
from polytempo.core.model.rows import Sums, sum_rows
from polytempo.core.orders import Objective, Orders, Train
from polytempo.strategies.base.strategy import Setting, Strategy
from polytempo.strategies.parts.graph import Graph
from polytempo.strategies.parts.model_table import ModelTable
from polytempo.strategies.parts.rounds import Rounds


class Collaboration(Strategy, ABC):
    """The base of all such methods. A method says how client i's model is compared with others' (``meet``), which
    weights follow (``weigh``) and what local training adds to the loss (``objective``)."""

    unmixable = "every client has a model of its own, so that there are no updates of others to mix with"
    questions: tuple[str, ...] = ()
    """What clients are asked for the weights."""

    def begin(self, setting: Setting) -> None:
        super().begin(setting)
        del self.model  # everybody has one of its own

    def setup(self) -> None:
        self.t = 0
        """Updates so far, or rounds."""
        self.graph = Graph()
        self.models = ModelTable(self.setting.initial)
        """One per client; what it is differs between the servers below."""

    @abstractmethod
    def meet(self, client: int, vector: Tensor, models: Tensor, clients: np.ndarray, shares: np.ndarray | None) -> Sums:
        """Compare what a client handed in with the models of these clients, then move them by their shares."""

    @abstractmethod
    def weigh(self, index: int, sums: Sums, p: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """The row W_i over these clients, of whom client i has this index; p are their shares of the data."""

    @abstractmethod
    def objective(self) -> Objective:
        """What is added to the local loss, with the received model as its anchor."""

    def note(self, update: Update) -> None:
        """Keep what the weights need of an update."""
        self.graph.samples[update.client] = update.samples

    def row(self, client: int, sums: Sums, p: np.ndarray, clients: np.ndarray) -> np.ndarray:
        """Who learns from whom, for one client: what ``weigh`` says, checked. Models so large that they cannot be
        compared teach nobody but their own client."""
        comparable = np.isfinite(sums.values) & np.isfinite(sums.row_squares)
        if not comparable[clients == client].all():
            return (clients == client).astype(float)
        row = np.zeros(len(clients))
        row[comparable] = self._checked_row(client, sums.of(comparable), p[comparable], clients[comparable])
        return row

    def _checked_row(self, client: int, sums: Sums, p: np.ndarray, clients: np.ndarray) -> np.ndarray:
        index = int(np.searchsorted(clients, client))
        row = np.asarray(self.weigh(index, sums, p / p.sum(), clients), float)
        if row.shape != clients.shape or not (row >= 0).all() or abs(row.sum() - 1) > 1e-6:
            found = f"a row that sums to {row.sum():g}" if row.shape == clients.shape else f"the shape {row.shape}"
            raise StrategyError(
                f"{type(self).__name__}.weigh gave client {client} {found}; expected {len(clients)} weights, one for "
                "each of the clients named, none negative, that sum to 1"
            )
        return row

    def joined(self, client: int, now: float) -> Orders:
        """Whoever comes after others have handed in begins with the mean of their models, by samples."""
        new = client >= len(self.graph) or not self.graph.joined[client]
        self.graph.join(client)
        self.models.reach(client)
        known = self.graph.known()
        if new and len(known):
            self.models.put(client, sum_rows(by_samples(self.graph, known), self.models.matrix))
        return super().joined(client, now)

    def forget(self, client: int) -> None:
        self.graph.forget(client)
        self.models.put(client, self.setting.initial)
        super().forget(client)

    def order_from(self, client: int, weights: Tensor) -> Train:
        """The usual work from this model, which nobody changes any more."""
        return Train(client, weights, self.t, self.setting.work, self.objective(), questions=self.questions)

    def order_for(self, client: int, now: float) -> Train:
        return self.order_from(client, self.models.copy(client))

    def model_for(self, client: int) -> Tensor:
        return self.models.view(client)

    def tau(self, update: Update) -> int:
        return self.t - update.version

    def cluster_of(self, client: int) -> int:
        return client

    def collaboration(self) -> np.ndarray:
        return self.graph.by_client()


class CollaborationRounds(Collaboration, Rounds):
    """In rounds: the members of one learn from each other, ``u_i = sum_j W_ij theta_j``; the others' models stay."""

    def aggregate(self, updates: Sequence[Update], now: float) -> None:
        self.t += 1
        for update in updates:
            self.note(update)
        clients = np.array([update.client for update in updates])
        trained = torch.stack([update.weights for update in updates])
        samples = np.array([update.samples for update in updates], float)
        for update in updates:
            sums = self.meet(update.client, update.weights, trained, clients, None)
            row = self.row(update.client, sums, samples / samples.sum(), clients)
            self.graph.put(update.client, clients, row)
            self.models.put(update.client, sum_rows(row, trained))


class NaiveCollaboration(Collaboration):
    """Without rounds and without a thought of staleness: whoever's turn it is gets ``u_i = sum_j W_ij theta_j`` over
    the latest model of everyone who has handed in, by a row that is estimated from just these models."""

    def updated(self, update: Update, now: float) -> None:
        self.t += 1
        self.note(update)
        self.models.put(update.client, update.weights)

    def order_for(self, client: int, now: float) -> Train:
        known = self.graph.known()
        if client not in known:
            return self.order_from(client, self._mean(known))
        row = self._row(client, known)
        self.graph.put(client, known, row)
        return self.order_from(client, self._mixed(row, known))

    def model_for(self, client: int) -> Tensor:
        known = self.graph.known()
        return self._mixed(self._row(client, known), known) if client in known else self._mean(known)

    def _row(self, client: int, known: np.ndarray) -> np.ndarray:
        everyone = np.arange(len(self.models))
        sums = self.meet(client, self.models.view(client), self.models.matrix, everyone, None)
        samples = self.graph.samples[known]
        return self.row(client, sums.of(known), samples / samples.sum(), known)

    def _mixed(self, row: np.ndarray, known: np.ndarray) -> Tensor:
        weights = np.zeros(len(self.models))
        weights[known] = row
        return sum_rows(weights, self.models.matrix)

    def _mean(self, known: np.ndarray) -> Tensor:
        """What a client gets that has not handed in."""
        return sum_rows(by_samples(self.graph, known), self.models.matrix) if len(known) else self.setting.initial


def by_samples(graph: Graph, known: np.ndarray) -> np.ndarray:
    """Weights of those who have handed in, by client number, in proportion to their samples."""
    weights = np.zeros(len(graph))
    weights[known] = graph.samples[known] / graph.samples[known].sum()
    return weights
