"""Collaboration: every client has a model of its own, made of everybody's by the weights of a graph. How the weights
come about is a method's (pFedGraph, FedAMP, FedSaC); when they are used is here, in rounds or naively at any time, and
in ``pace.py``, which keeps both true under staleness."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.orders import Objective, Orders, Train
from polytempo.core.rows import Sums, sum_rows
from polytempo.strategies.parts.graph import Graph
from polytempo.strategies.parts.model_table import ModelTable
from polytempo.strategies.parts.rounds import Rounds
from polytempo.strategies.strategy import Setting, Strategy


class Collaboration(Strategy, ABC):
    """The base of all such methods. A method says how client i's model is compared with others' (``meet``), which
    weights follow (``weigh``) and what local training adds to the loss (``objective``)."""

    questions: tuple[str, ...] = ()
    """What clients are asked for the weights."""

    def begin(self, setting: Setting) -> None:
        self.t = 0
        """Updates so far, or rounds."""
        self.graph = Graph()
        super().begin(setting)
        del self.model  # everybody has one of its own

    @abstractmethod
    def meet(
        self, client: int, vector: Tensor, models: Tensor, clients: Sequence[int], shares: np.ndarray | None
    ) -> Sums:
        """Compare what a client handed in with the models of these clients, then move them by their shares."""

    @abstractmethod
    def weigh(self, place: int, sums: Sums, p: np.ndarray, clients: Sequence[int]) -> np.ndarray:
        """The row W_i over these clients, of whom client i stands at this place; p are their shares of the data."""

    @abstractmethod
    def objective(self) -> Objective:
        """What is added to the local loss, with the received model as its anchor."""

    def hear(self, update: Update) -> None:
        """Keep what the weights need of an update."""
        self.graph.handed_in(update.client, update.samples)

    def joined(self, client: int, now: float) -> Orders:
        self.graph.reach(client)
        return super().joined(client, now)

    def order_from(self, client: int, weights: Tensor) -> Train:
        """The usual work from this model, which nobody changes any more."""
        return Train(client, weights, self.t, self.setting.work, self.objective(), questions=self.questions)

    def tau(self, update: Update) -> int:
        return self.t - update.version

    def cluster_of(self, client: int) -> int:
        return client

    def collaboration(self) -> np.ndarray:
        return self.graph.by_client()


class CollaborationRounds(Collaboration, Rounds):
    """In rounds: the members of one learn from each other, ``u_i = sum_j W_ij theta_j``; the others' models stay."""

    def setup(self) -> None:
        self.personal = ModelTable(self.setting.initial)

    def joined(self, client: int, now: float) -> Orders:
        self.personal.reach(client)
        return super().joined(client, now)

    def order_for(self, client: int, now: float) -> Train:
        return self.order_from(client, self.personal.copy(client))

    def model_for(self, client: int) -> Tensor:
        return self.personal.view(client)

    def aggregate(self, updates: Sequence[Update], now: float) -> None:
        self.t += 1
        for update in updates:
            self.hear(update)
        clients = [update.client for update in updates]
        models = torch.stack([update.weights for update in updates])
        samples = np.array([update.samples for update in updates], float)
        for place, update in enumerate(updates):
            sums = self.meet(update.client, update.weights, models, clients, None)
            row = self.weigh(place, sums, samples / samples.sum(), clients)
            self.graph.put(update.client, spread(row, clients, len(self.graph)))
            self.personal.put(update.client, sum_rows(row, models))


class NaiveCollaboration(Collaboration):
    """Without rounds and without a thought of staleness: whoever's turn it is gets ``u_i = sum_j W_ij theta_j`` over
    the latest model of everyone who has handed in, by a row that is estimated from just these models."""

    def setup(self) -> None:
        self.latest = ModelTable(self.setting.initial)

    def joined(self, client: int, now: float) -> Orders:
        self.latest.reach(client)
        return super().joined(client, now)

    def updated(self, update: Update, now: float) -> None:
        self.t += 1
        self.hear(update)
        self.latest.put(update.client, update.weights)

    def order_for(self, client: int, now: float) -> Train:
        row, model = self._personal(client)
        if self._heard(client):
            self.graph.put(client, row)
        return self.order_from(client, model)

    def model_for(self, client: int) -> Tensor:
        return self._personal(client)[1]

    def _heard(self, client: int) -> bool:
        return client < len(self.graph) and not np.isnan(self.graph.samples[client])

    def _personal(self, client: int) -> tuple[np.ndarray, Tensor]:
        """A client's row and model now; until it has handed in, the mean of everybody's model by samples."""
        heard = np.flatnonzero(~np.isnan(self.graph.samples))
        if not len(heard):
            return np.zeros(0), self.setting.initial
        clients, models = heard.tolist(), self.latest.matrix
        row = self.graph.samples[heard] / self.graph.samples[heard].sum()
        if self._heard(client):
            sums = self.meet(client, self.latest.view(client), models, range(len(models)), None)
            sums = Sums(sums.values[heard], sums.row_squares[heard])
            row = self.weigh(clients.index(client), sums, row, clients)
        whole = spread(row, clients, len(self.graph))
        return whole, sum_rows(whole, models)


def spread(row: np.ndarray, clients: Sequence[int], size: int) -> np.ndarray:
    """A row over some clients as one over all, 0 for the others."""
    whole = np.zeros(size)
    whole[clients] = row
    return whole
