"""Gradients from an engine, and the local optimiser for rules that move several vectors together."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from polytempo.core.model.vectors import tensor_of
from polytempo.core.orders import Objective, Work
from polytempo.learn.job import Engine, Job

RATE = 2.0**16
"""Of the one step that shows a gradient. The larger it is, the less of the gradient is rounded away beside the weights;
a power of two can be divided by exactly."""


class Slope(NamedTuple):
    """What one batch says at a point."""

    gradient: np.ndarray
    """Of the local loss, by the parameters."""
    buffers: np.ndarray
    """The model's buffers (batch norm's statistics) after the forward pass."""


class Gradients:
    """Gradients on the batches of a job. An engine has no word for them; one step of plain SGD shows them."""

    def __init__(self, engine: Engine, job: Job, parameters: int) -> None:
        self._engine, self._job, self._parameters = engine, job, parameters
        self._work = replace(job.work, optimizer="sgd", momentum=0.0)

    def at(self, weights: np.ndarray, step: int, objective: Objective | None = None) -> Slope:
        """At these weights, on the batch of that step. Weight decay and mask are those of the job."""
        one_step = replace(
            self._job,
            start=tensor_of(weights),
            batches=self._job.batches.only(step),
            work=self._work,
            lr=RATE,
            objective=objective or Objective(),
            refreshes=(),
            seed=(self._job.seed + step) % 2**31,
            listen=None,
        )
        moved, n = self._engine.train(one_step).numpy(), self._parameters
        gradient = (weights[:n].astype(np.float64) - moved[:n]) / RATE
        return Slope(gradient.astype(np.float32), moved[n:])


class Optimiser:
    """The local optimiser of a job for one vector: the formulas of the engines, one step at a time."""

    def __init__(self, work: Work, rate: float) -> None:
        self._work, self._rate, self._steps = work, np.float32(rate), 0
        self._first = self._second = np.zeros(1, np.float32)

    def step(self, weights: np.ndarray, slope: Slope) -> np.ndarray:
        """The weights after a step against this gradient, with the buffers that came with it."""
        parameters = weights[: len(slope.gradient)]
        step = self._adam(slope.gradient) if self._work.optimizer == "adam" else self._sgd(slope.gradient)
        return np.concatenate([parameters - self._rate * step, slope.buffers])

    def _sgd(self, g: np.ndarray) -> np.ndarray:
        if not self._work.momentum:
            return g
        self._first = np.float32(self._work.momentum) * self._first + g
        return self._first

    def _adam(self, g: np.ndarray) -> np.ndarray:
        self._steps += 1
        self._first = self._first + np.float32(0.1) * (g - self._first)
        self._second = np.float32(0.999) * self._second + np.float32(0.001) * g * g
        scale = np.sqrt(self._second) / np.float32((1 - 0.999**self._steps) ** 0.5) + np.float32(1e-8)
        return self._first / scale / np.float32(1 - 0.9**self._steps)
