"""Proxy sets: samples of the server's own, a few for each cluster, on which it judges and begins models (CDFL)."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.orders import Work
from polytempo.core.schedules import rate_at
from polytempo.learn.job import Job
from polytempo.learn.learner import Learner
from polytempo.learn.scoring import mean_per_part
from polytempo_client.streams import stream

WARM_UP_EPOCHS = 5
"""On all proxy sets, where there are some and nobody says how many."""


class ProxySets:
    """K sets of samples with labels: those of cluster k are ``offsets[k]:offsets[k + 1]``. Training on them is that of
    the clients' work; the same sets and seed always give the same bits."""

    def __init__(
        self, learner: Learner, x: np.ndarray, y: np.ndarray, offsets: np.ndarray, work: Work, seed: int
    ) -> None:
        if learner.layers.private is not None:
            raise UserError(
                "Proxy sets are there for the server to judge and train models, and it does not have the layers that "
                "stay at the clients. Leave out --proxies or --personal-layers, or take a strategy without proxy sets."
            )
        self._learner, self._work, self._seed = learner, work, seed
        self._x, self._y = torch.from_numpy(x), torch.from_numpy(y)
        self._parts = [slice(begin, end) for begin, end in pairwise(offsets.tolist())]

    @property
    def clusters(self) -> int:
        """K"""
        return len(self._parts)

    def warmed(self, initial: Tensor, epochs: int) -> Tensor:
        """The model after so many epochs on all sets together."""
        return self._trained(initial, slice(0, len(self._y)), epochs, stream(self._seed, "warm-up"))

    def specialised(self, weights: Tensor, epochs: int) -> list[Tensor]:
        """For each cluster, the model after so many epochs on its set."""
        return [
            self._trained(weights, part, epochs, stream(self._seed, "specialise", k))
            for k, part in enumerate(self._parts)
        ]

    def losses(self, weights: Tensor) -> np.ndarray:
        """``F(w; D_k)`` for every k, in one forward pass over all sets."""
        losses = self._learner.scorer.losses(weights, self._x, self._y)
        return mean_per_part(losses.numpy(), [part.stop - part.start for part in self._parts])

    def loss(self, weights: Tensor, cluster: int) -> float:
        """``F(w; D_k)`` for one k."""
        part = self._parts[cluster]
        return float(self._learner.scorer.losses(weights, self._x[part], self._y[part]).mean())

    def _trained(self, weights: Tensor, part: slice, epochs: int, rng: np.random.Generator) -> Tensor:
        if not epochs:
            return weights
        work, rows = self._work, np.arange(part.start, part.stop)
        batches = self._learner.batches(rows, work, epochs * -(-len(rows) // work.batch_size), rng)
        return self._learner.engine.train(Job(weights, self._x, self._y, batches, work, rate_at(work.lr, 0)))
