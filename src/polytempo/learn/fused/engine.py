"""The fused engine: a client's whole local training in one call of compiled code (or in segments, if it is to listen
between them), for models of layers it knows."""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from polytempo.core.errors import UserError
from polytempo.learn.fused.layers import UnsupportedError, layers_of
from polytempo.learn.fused.plan import Plan, make_plan
from polytempo.learn.fused.training import FINISHED, OPTIONS, train
from polytempo.learn.fused.vector import LANES
from polytempo.learn.job import Job, Refresh

LONGEST_SEGMENT = 0.02
"""Seconds after which a training that listens notices a refresh at the latest, unless one step takes longer."""


def why_unsupported(module: nn.Module) -> str | None:
    """Why the fused engine cannot train this module, or None if it can."""
    try:
        layers_of(module)
    except UnsupportedError as reason:
        return str(reason)
    return None


class FusedEngine:
    """Linear, Conv2d, ReLU, MaxPool2d(2) and Flatten in sequence, with cross-entropy. Weights stay in torch's own flat
    layout; every call has its own memory, so any number of threads may train at once."""

    def __init__(self, module: nn.Module) -> None:
        reason = why_unsupported(module)
        if reason is not None:
            raise UserError(f"The fused engine cannot train this model: {reason}. Use --engine eager (or auto).")
        self._layers = layers_of(module)
        self._plans: dict[tuple[tuple[int, ...], int], Plan] = {}

    def train(self, job: Job) -> Tensor:
        if job.x.dtype != torch.float32:
            raise UserError(f"The fused engine needs float32 samples, not {job.x.dtype}. Convert them, or use eager.")
        rows, offsets = _indices(job.batches.rows), _indices(job.batches.offsets)
        plan = self._plan(tuple(job.x.shape[1:]), int(np.diff(offsets).max(initial=1)))
        if rows.size and not 0 <= rows.min() <= rows.max() < len(job.x) == len(job.y):
            raise UserError(f"Rows up to {rows.max()} of {len(job.x)} samples with {len(job.y)} labels were asked for.")
        training = _Training(job, plan, rows, offsets)
        if job.listen is None:
            training.run(0, len(job.batches), job.refreshes)
        else:
            training.run_listening()
        return torch.from_numpy(training.w[: plan.parameters].copy())

    def _plan(self, shape: tuple[int, ...], largest_batch: int) -> Plan:
        key = (shape, largest_batch)
        if key not in self._plans:  # two threads may both make it; they make the same
            self._plans[key] = make_plan(self._layers, shape, largest_batch)
        return self._plans[key]


class _Training:
    """One job as the compiled code takes it: what stays the same, and what a segment of steps leaves to the next."""

    def __init__(self, job: Job, plan: Plan, rows: np.ndarray, offsets: np.ndarray) -> None:
        anchor, linear, size = job.objective.anchor, job.objective.linear, plan.parameters
        self._job = job
        self._plan = plan
        self._options = _options(job)
        self._data = (job.x.contiguous().numpy().reshape(-1), _indices(job.y.numpy()), rows, offsets)
        self._anchor = np.zeros(0, np.float32) if anchor is None else _vector(anchor, plan)
        self._linear = np.zeros(0, np.float32) if linear is None else _vector(linear, plan)
        self._mask = np.zeros(0, np.bool_) if job.mask is None else _vector(job.mask, plan)
        self._kept = np.zeros(0, np.bool_) if job.kept is None else _vector(job.kept, plan)
        self._began = _vector(job.start, plan)
        self.w = np.concatenate([self._began, np.zeros(LANES, np.float32)])
        self._gradient = np.zeros(len(self.w), np.float32)
        self._moments = np.zeros((2, size if self._options["adam"] else 0), np.float32)

    def run(self, first: int, last: int, refreshes: Sequence[Refresh]) -> None:
        """The steps from ``first`` to before ``last``, in one call."""
        plan = self._plan
        fresh = np.array([_vector(refresh.weights, plan) for refresh in refreshes], np.float32)
        fresh = fresh.reshape(-1, plan.parameters)
        bad_step = train(
            plan.stages,
            plan.table,
            plan.scratch,
            self._options,
            first,
            last,
            self.w,
            self._gradient,
            self._moments,
            *self._data,
            self._anchor,
            self._linear,
            self._mask,
            self._kept,
            _indices(np.array([refresh.at_step for refresh in refreshes])),
            np.array([refresh.rebase for refresh in refreshes], np.bool_),
            fresh,
            self._began,
        )
        if bad_step != FINISHED:
            classes = plan.stages[-1]["filters"]
            raise UserError(
                f"A label in step {bad_step} is none of the model's {classes} classes (0 to {classes - 1})."
            )
        if refreshes:
            self._began = fresh[-1]

    def run_listening(self) -> None:
        """In segments that begin with one step and grow while they take less than half of what they may."""
        done, segment, goes_on = 0, 1, True
        while goes_on:
            refreshes, goes_on = self._job.due(done)
            last = min(done + segment, len(self._job.batches)) if goes_on else done
            clock = time.perf_counter()
            self.run(done, last, refreshes)
            seconds = time.perf_counter() - clock
            if seconds > LONGEST_SEGMENT:
                segment = max(1, segment // 2)
            elif seconds < LONGEST_SEGMENT / 2:
                segment *= 2
            done = last


def _vector(tensor: Tensor, plan: Plan) -> np.ndarray:
    if tensor.shape != (plan.parameters,):
        raise UserError(f"The model has {plan.parameters} weights; a vector of shape {tuple(tensor.shape)} was given.")
    return tensor.detach().contiguous().numpy()


def _indices(array: np.ndarray) -> np.ndarray:
    """Always the same type (a read-only array is another one to numba), so that nothing is compiled twice."""
    return np.require(array, np.int64, ["C", "W"])


def _options(job: Job) -> np.void:
    work, objective = job.work, job.objective
    adam = work.optimizer == "adam"
    momentum = 0.0 if adam else work.momentum
    plain = not adam and not momentum and not work.weight_decay and objective.plain and job.mask is None
    numbers = (job.lr, momentum, work.weight_decay, objective.proximal, objective.cosine, objective.l2)
    return np.array([(*numbers, adam, plain)], OPTIONS)[0]
