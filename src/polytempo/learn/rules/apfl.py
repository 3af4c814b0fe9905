"""The rule ``apfl``, the client's half of Adaptive personalized federated learning (Deng, Kamani and Mahdavi, 2020),
Algorithm 1 with the adaptive mixture of section 4."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import Tensor

from polytempo.core.model.vectors import tensor_of
from polytempo.core.orders import Objective
from polytempo.learn.job import Job
from polytempo.learn.rules.gradients import Gradients, Optimiser, Slope
from polytempo.learn.rules.rule import Rule
from polytempo_client.personal.rule import ClientMemory
from polytempo_client.personal.told import JuryScores, Personal


class ApflRule(Rule):
    """The client trains two models at once: w, which it is sent and hands in, and v, which it keeps. It uses their
    mixture ``u = alpha v + (1 - alpha) w``, and keeps alpha, too. Each local step moves, from the same point,
    ``w <- w - eta grad f(w)`` and ``v <- v - eta alpha grad f(u)``. The first one, where w is still the served model,
    also moves ``alpha <- alpha - eta <v - w, grad f(u)>``."""

    models_trained = 2

    def anchored(self, objective: Objective, served: Tensor) -> Objective:
        """The engine sees one step at a time: the anchor has to be named."""
        return objective if objective.plain or objective.anchor is not None else replace(objective, anchor=served)

    def train(self, job: Job) -> Tensor:
        with np.errstate(over="ignore", invalid="ignore"):  # a training that diverges is refused, without a word here
            return self._train(job)

    def _train(self, job: Job) -> Tensor:
        memory = self._a.memory
        w = began = job.start.numpy()
        v = w if memory is None else memory.average
        alpha = self._given["alpha"] if memory is None else memory.numbers["alpha"]
        gradients = Gradients(self._learner.engine, job, self._learner.layers.model.parameter_count)
        moving_w, moving_v = Optimiser(job.work, job.lr), Optimiser(job.work, job.lr)
        for step in range(len(job.batches) + 1):
            refreshes, goes_on = job.due(step)
            for refresh in refreshes:
                sent = refresh.weights.numpy()
                fresh = sent + (w - began) if refresh.rebase else sent
                w, began = fresh if job.kept is None else np.where(job.kept.numpy(), w, fresh), sent
            if not goes_on:
                break
            at_w, at_u = gradients.at(w, step, job.objective), gradients.at(mixture(v, w, alpha), step)
            at_v = Slope(np.float32(alpha) * at_u.gradient, at_u.buffers)
            if step == 0 and self._given["adaptive"]:
                alpha = adapted(alpha, v, w, at_u.gradient, job.lr)
            w, v = moving_w.step(w, at_w), moving_v.step(v, at_v)
        self._v, self._alpha = v, alpha
        return tensor_of(w)

    def remembered(self, trained: Tensor, steps: int) -> ClientMemory | None:
        own = mixture(self._v, trained.numpy(), self._alpha)
        return ClientMemory(own, self._v, numbers={"alpha": self._alpha})

    @staticmethod
    def used(
        memory: ClientMemory, served: np.ndarray, personal: Personal, judged: Callable[[], JuryScores]
    ) -> np.ndarray:
        return mixture(memory.average, served, memory.numbers["alpha"])


def mixture(v: np.ndarray, w: np.ndarray, alpha: float) -> np.ndarray:
    """``alpha v + (1 - alpha) w``"""
    return np.float32(alpha) * v + np.float32(1 - alpha) * w


def adapted(alpha: float, v: np.ndarray, w: np.ndarray, gradient: np.ndarray, rate: float) -> float:
    """alpha after a step against ``d f(u) / d alpha = <v - w, grad f(u)>``, from 0 to 1."""
    n = len(gradient)
    slope = ((v[:n] - w[:n]).astype(np.float64) * gradient).sum()
    return float(np.clip(alpha - rate * slope, 0.0, 1.0))
