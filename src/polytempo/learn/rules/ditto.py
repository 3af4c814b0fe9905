"""The rule ``ditto``, the client's half of Ditto: fair and robust federated learning through personalization (Li et
al., ICML 2021), Algorithm 1."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import Tensor

from polytempo.core.model.vectors import tensor_of
from polytempo.core.orders import Objective
from polytempo.learn.job import Job
from polytempo.learn.rules.rule import Rule
from polytempo_client.personal.rule import NO_VECTOR, ClientMemory
from polytempo_client.personal.told import JuryScores, Personal


class DittoRule(Rule):
    """Beside the model that it hands in, the client trains a personal model v that stays near the served model w:
    ``v <- v - eta (grad f(v) + lambda (v - w))``, as many steps, on the same batches. It keeps v and uses v."""

    models_trained = 2

    def train(self, job: Job) -> Tensor:
        self._job = job
        return super().train(job)

    def remembered(self, trained: Tensor, steps: int) -> ClientMemory | None:
        memory, near = self._a.memory, Objective(proximal=self._given["lambda"], anchor=self._served)
        v = self._served if memory is None else tensor_of(memory.own)
        batches = self._job.batches.first(steps)
        own = replace(self._job, start=v, batches=batches, objective=near, refreshes=(), listen=None)
        return ClientMemory(self._learner.engine.train(own).numpy(), NO_VECTOR)

    @staticmethod
    def used(
        memory: ClientMemory, served: np.ndarray, personal: Personal, judged: Callable[[], JuryScores]
    ) -> np.ndarray:
        return memory.own
