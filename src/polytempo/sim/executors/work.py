"""The computations of a run, and the worker that carries them out."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polytempo.core.model.vectors import tensor_of
from polytempo.learn.learner import Assignment, CarriedOut, Learner
from polytempo.learn.questions import Question, questions
from polytempo_client.personal.rule import ClientMemory, judge
from polytempo_client.personal.told import JuryScores


@dataclass(frozen=True)
class Scoring:
    """Score a model: what comes of it is the metric of each row."""

    weights: Tensor
    rows: np.ndarray
    labels: Tensor
    """Of these rows."""

    def tensors(self) -> list[Tensor]:
        return [self.weights]


@dataclass(frozen=True)
class Judging:
    """Let a client's jury judge the model that the client would be served."""

    average: np.ndarray
    """Of the client's own models."""
    served: Tensor
    jury: np.ndarray
    labels: Tensor
    """Of the whole data set, as the client sees them."""
    changed: bool
    """Have the client's data changed?"""

    def tensors(self) -> list[Tensor]:
        return [self.served, self.labels]


class SharedWorker:
    """The worker of a run: it does what all clients do, with the learner that they share and the features of the data
    set. May be called from several threads at once."""

    def __init__(self, learner: Learner, x: Tensor, y: Tensor) -> None:
        self.learner = learner
        self.data = {"x": x, "y": y}

    def __reduce__(self) -> tuple[Any, ...]:
        """Questions that are not Polytempo's travel too."""
        own = {name: question for name, question in questions.items() if not _is_ours(question)}
        return _arrived, (self.learner, self.data["x"], self.data["y"], own)

    def do(self, computation: Assignment | Scoring | Judging) -> CarriedOut | np.ndarray | JuryScores:
        if isinstance(computation, Assignment):
            return self.learner.carry_out(computation)
        if isinstance(computation, Scoring):
            return self.learner.scorer.metric(computation.weights, self.data["x"], computation.labels, computation.rows)
        return self._judge(computation)

    def _judge(self, judging: Judging) -> JuryScores:
        memory, score = ClientMemory(average=judging.average), partial(self._judged, judging.labels)
        return judge(memory, judging.served.numpy(), judging.jury, score, judging.changed)

    def _judged(self, labels: Tensor, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Errors and Brier scores of these rows."""
        of_rows = labels[torch.from_numpy(rows)]
        return self.learner.scorer.judged(tensor_of(weights), self.data["x"], of_rows, rows)


def _arrived(learner: Learner, x: Tensor, y: Tensor, own: dict[str, Question]) -> SharedWorker:
    for name, question in own.items():
        questions.add(name, question)
    return SharedWorker(learner, x, y)


def _is_ours(question: Question) -> bool:
    return question.answer.__module__.partition(".")[0] == "polytempo"
