"""The base of all rules: a client that keeps nothing."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from torch import Tensor

from polytempo.core.orders import Objective
from polytempo.learn.job import Job
from polytempo_client.personal.rule import ClientMemory
from polytempo_client.personal.told import JuryScores, Personal

if TYPE_CHECKING:  # a learner begins a rule
    from polytempo.learn.learner import Assignment, Learner


class Rule:
    """One client's personal rule at work on one assignment. This one does what a client without a rule does: it trains
    the model that it was sent, hands the result in and keeps nothing. A rule overrides what differs."""

    has_jury: ClassVar[bool] = False
    """Does the client hold rows out of training, to judge models by?"""
    models_trained: ClassVar[int] = 1
    """Models that a local step moves: what it costs, in steps of one model."""
    trains_ahead: ClassVar[bool] = False
    """Does the client train something before its first local step? ``steps_ahead`` says for how long."""

    def __init__(self, learner: "Learner", a: "Assignment", served: Tensor, candidate: int | None) -> None:
        self._learner, self._a, self._served = learner, a, served
        personal = a.order.personal
        self._given = {} if personal is None else personal.parameters
        self.scores: JuryScores | None = None
        """What the jury said of the model that was sent, where there is one."""

    def start(self, served: Tensor) -> Tensor:
        """What the client trains from when it is sent this model."""
        return served

    def anchored(self, objective: Objective, served: Tensor) -> Objective:
        """What is added to the local loss."""
        return objective

    def train(self, job: Job) -> Tensor:
        """Local training, of which the first model is handed in."""
        return self._learner.engine.train(job)

    def outgoing(self, trained: Tensor, served: Tensor) -> Tensor:
        """What the client hands in."""
        return trained

    def remembered(self, trained: Tensor, steps: int) -> ClientMemory | None:
        """What the client remembers from now on, after so many steps; None: what it remembered before."""
        return None

    @classmethod
    def steps_ahead(cls, learner: "Learner", a: "Assignment") -> float:
        """Training steps that the client does before its first local step, where it ``trains_ahead``."""
        return 0.0

    @staticmethod
    def used(
        memory: ClientMemory, served: np.ndarray, personal: Personal, judged: Callable[[], JuryScores]
    ) -> np.ndarray:
        """The model that a client works with when it would be served this one. ``judged`` asks its jury."""
        return served
