"""The rule ``fedala``, the client's half of FedALA: adaptive local aggregation for personalized federated learning
(Zhang et al., AAAI 2023), Algorithm 1."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from polytempo.core.model.vectors import tensor_of
from polytempo.core.schedules import rate_at
from polytempo.learn.job import Job
from polytempo.learn.rules.gradients import Gradients
from polytempo.learn.rules.rule import Rule
from polytempo_client.model.schema import Schema
from polytempo_client.personal.rule import ClientMemory
from polytempo_client.personal.told import JuryScores, Personal
from polytempo_client.streams import stream

if TYPE_CHECKING:
    from polytempo.learn.learner import Assignment, Learner

MOST_EPOCHS = 100
"""Of the first learning, if the losses never settle. The paper sets no bound."""


class Learned(NamedTuple):
    """The weights of the served model after a client has learned them, ..."""

    weights: np.ndarray
    """... one for each entry of the top layers, ..."""
    epochs: int = 0
    """... and how many epochs that took."""


class FedAlaRule(Rule):
    """The client starts from ``own + (served - own) W``: W is 1 in the lower layers, and in the top p layers each entry
    has a weight that is learned on a sample of the client's rows. It keeps W and the model that it trained, which it
    uses."""

    trains_ahead = True

    def __init__(self, learner: "Learner", a: "Assignment", served: Tensor, candidate: int | None) -> None:
        super().__init__(learner, a, served, candidate)
        self._top = top_layers(learner.layers.model, int(self._given["layers"]))
        self._learned = _learned(learner, a, served.numpy(), self._top)

    def start(self, served: Tensor) -> Tensor:
        memory = self._a.memory
        if memory is None:
            return served
        return tensor_of(aggregated(memory.own, served.numpy(), self._learned.weights, self._top))

    def remembered(self, trained: Tensor, steps: int) -> ClientMemory | None:
        has_learned = self._learned.epochs > 0 or _has_learned(self._a.memory)
        return ClientMemory(trained.numpy(), self._learned.weights, numbers={"has_learned": float(has_learned)})

    @classmethod
    def steps_ahead(cls, learner: "Learner", a: "Assignment") -> float:
        """The first learning ends when it has converged: to know how long it takes, it is done."""
        assert a.order.personal is not None
        if a.memory is None:
            return 0.0
        given, epochs = a.order.personal.parameters, 1
        if not _has_learned(a.memory):
            top = top_layers(learner.layers.model, int(given["layers"]))
            epochs = _learned(learner, a, a.order.weights.numpy(), top).epochs
        return float(epochs * _steps_per_epoch(_sample_size(len(a.rows), given["percent"]), a.order.work.batch_size))

    @staticmethod
    def used(
        memory: ClientMemory, served: np.ndarray, personal: Personal, judged: Callable[[], JuryScores]
    ) -> np.ndarray:
        return memory.own


# Formulas.


def top_layers(schema: Schema, count: int) -> np.ndarray:
    """The entries of the last so many layers that have parameters, as a mask over the vector."""
    parameters = [name for name, span in schema.spans.items() if span.stop <= schema.parameter_count]
    layers = list(dict.fromkeys(_layer(name) for name in parameters))[-count:]
    mask = np.zeros(schema.size, bool)
    for name in parameters:
        if _layer(name) in layers:
            mask[schema.spans[name]] = True
    return mask


def aggregated(own: np.ndarray, served: np.ndarray, weights: np.ndarray, top: np.ndarray) -> np.ndarray:
    """``own + (served - own) W``, where W is 1 but in the top layers."""
    start = served.copy()
    start[top] = own[top] + (served[top] - own[top]) * weights
    return start


def reweighted(weights: np.ndarray, gradient: np.ndarray, apart: np.ndarray, eta: float) -> np.ndarray:
    """W after a step against ``dL/dW = gradient (served - own)``, each from 0 to 1."""
    return np.clip(weights - np.float32(eta) * gradient * apart, np.float32(0), np.float32(1))


def has_converged(losses: Sequence[float], window: int, threshold: float) -> bool:
    """Has the loss settled? Its standard deviation over the last epochs is small, and there were more epochs."""
    return len(losses) > window and float(np.std(losses[-window:])) < threshold


# Learning.


def _learned(learner: "Learner", a: "Assignment", served: np.ndarray, top: np.ndarray) -> Learned:
    """Learn W: one epoch, the first time until the loss has settled. Where the client has no model of its own, or the
    same as the served one, there is nothing to learn."""
    if a.memory is None:
        return Learned(np.ones(np.count_nonzero(top), np.float32))
    own, weights = a.memory.own, a.memory.average
    apart = served[top] - own[top]
    if not apart.any():
        return Learned(weights)
    assert a.order.personal is not None
    given = a.order.personal.parameters
    most = 1 if _has_learned(a.memory) else MOST_EPOCHS
    rng = stream(a.seed, "rows for local aggregation", a.order.client, a.count)
    rows = rng.choice(a.rows, _sample_size(len(a.rows), given["percent"]), replace=False)
    job, parameters = _job(learner, a, rows, rng), learner.layers.model.parameter_count
    gradients, last = Gradients(learner.engine, job, parameters), len(job.batches) - 1
    losses: list[float] = []
    epochs = 0
    while epochs < most and not has_converged(losses, int(given["window"]), given["threshold"]):
        for step in range(last + 1):
            start = aggregated(own, served, weights, top)
            if step == last and most > 1:
                losses.append(_loss(learner, job, start, step))
            gradient = gradients.at(start, step).gradient[top[:parameters]]
            weights = reweighted(weights, gradient, apart, given["eta"])
        epochs += 1
    return Learned(weights, epochs)


def _job(learner: "Learner", a: "Assignment", rows: np.ndarray, rng: np.random.Generator) -> Job:
    """An epoch over these rows, without weight decay. All epochs have the same batches: the loss of the last one shows
    whether the weights still move."""
    work = replace(a.order.work, weight_decay=0.0)
    batches = learner.batches(rows, work, _steps_per_epoch(len(rows), work.batch_size), rng)
    return Job(
        tensor_of(np.zeros(learner.layers.model.size, np.float32)), a.x, a.y, batches, work, rate_at(work.lr, a.count)
    )


def _loss(learner: "Learner", job: Job, weights: np.ndarray, step: int) -> float:
    rows = job.batches.only(step).rows
    return float(learner.scorer.losses(tensor_of(weights), job.x, job.y[torch.from_numpy(rows)], rows).mean())


def _has_learned(memory: ClientMemory | None) -> bool:
    return memory is not None and bool(memory.numbers["has_learned"])


def _sample_size(rows: int, percent: float) -> int:
    return max(1, int(rows * percent / 100))


def _steps_per_epoch(rows: int, batch_size: int) -> int:
    return -(-rows // batch_size)


def _layer(name: str) -> str:
    """The layer that a parameter belongs to."""
    return name.rpartition(".")[0] or name
