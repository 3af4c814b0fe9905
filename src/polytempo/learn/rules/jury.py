"""The rule ``jury``, the client's half of Concerto: rows that the client does not train on decide how much of its own
it starts from and uses. The formulas are in ``polytempo_client/personal/rule.py``."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from polytempo.core.model.vectors import tensor_of, trained_entries
from polytempo.core.orders import Objective
from polytempo.learn.rules.rule import Rule
from polytempo_client.personal.rule import Beginning, ClientMemory, begin, judge, mixed, outgoing, remembered, using
from polytempo_client.personal.told import JuryScores, Personal

if TYPE_CHECKING:
    from polytempo.learn.learner import Assignment, Learner


class JuryRule(Rule):
    """The client starts from a mixture of the served model and its own."""

    has_jury = True

    def __init__(self, learner: "Learner", a: "Assignment", served: Tensor, candidate: int | None) -> None:
        super().__init__(learner, a, served, candidate)
        self._begun = Beginning(memory=a.memory)
        if a.order.personal is None or a.dealt is None or a.memory is None:
            return
        scores = judge(a.memory, served.numpy(), a.dealt.jury, self._score, a.dealt.changed)
        self.scores = scores if scores.rows else None
        self._begun = begin(a.memory, scores, a.order.personal, chooses=candidate is not None)
        trained = trained_entries(learner.layers.model, a.order.mask, a.order.trainable)
        self._trained = None if trained is None else trained.numpy()

    def start(self, served: Tensor) -> Tensor:
        beta = self._begun.beta
        if not beta or self._a.memory is None:
            return served
        return tensor_of(mixed(served.numpy(), self._a.memory.own, beta, self._trained))

    def anchored(self, objective: Objective, served: Tensor) -> Objective:
        """Terms without an anchor of their own are about the model that was sent."""
        if not self._begun.beta or objective.plain or objective.anchor is not None:
            return objective
        return replace(objective, anchor=served)

    def outgoing(self, trained: Tensor, served: Tensor) -> Tensor:
        if not self._begun.beta:
            return trained
        start = self.start(served).numpy()
        return tensor_of(outgoing(trained.numpy(), start, served.numpy(), self._learner.layers.model.parameter_count))

    def remembered(self, trained: Tensor, steps: int) -> ClientMemory | None:
        dealt = self._a.dealt
        return None if dealt is None else remembered(self._begun, trained.numpy(), dealt, self._score)

    def _score(self, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        labels = self._a.y[torch.from_numpy(rows)]
        return self._learner.scorer.judged(tensor_of(weights), self._a.x, labels, rows)

    @staticmethod
    def used(
        memory: ClientMemory, served: np.ndarray, personal: Personal, judged: Callable[[], JuryScores]
    ) -> np.ndarray:
        return mixed(memory.average, served, using(memory, judged(), personal.pool))
