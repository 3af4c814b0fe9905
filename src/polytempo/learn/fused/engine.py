"""The fused engine: a client's whole local training in one call of compiled code, for models of layers it knows."""

import numpy as np
import torch
from torch import Tensor, nn

from polytempo.core.errors import UserError
from polytempo.learn.fused.layers import UnsupportedError, layers_of
from polytempo.learn.fused.plan import Plan, make_plan
from polytempo.learn.fused.training import FINISHED, OPTIONS, train
from polytempo.learn.fused.vector import LANES
from polytempo.learn.task import Task


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

    def train(self, task: Task) -> Tensor:
        if task.x.dtype != torch.float32:
            raise UserError(f"The fused engine needs float32 samples, not {task.x.dtype}. Convert them, or use eager.")
        rows, offsets = _indices(task.batches.rows), _indices(task.batches.offsets)
        plan = self._plan(tuple(task.x.shape[1:]), int(np.diff(offsets).max(initial=1)))
        if rows.size and not 0 <= rows.min() <= rows.max() < len(task.x) == len(task.y):
            raise UserError(
                f"Rows up to {rows.max()} of {len(task.x)} samples with {len(task.y)} labels were asked for."
            )
        start = _vector(task.start, plan)
        w = np.concatenate([start, np.zeros(LANES, np.float32)])
        anchor = task.objective.anchor
        refreshes = task.refreshes
        bad_step = train(
            plan.stages,
            plan.table,
            plan.scratch,
            _options(task),
            w,
            task.x.contiguous().numpy().reshape(-1),
            _indices(task.y.numpy()),
            rows,
            offsets,
            np.zeros(0, np.float32) if anchor is None else _vector(anchor, plan),
            np.zeros(0, np.bool_) if task.mask is None else _vector(task.mask, plan),
            _indices(np.array([refresh.at_step for refresh in refreshes])),
            np.array([refresh.rebase for refresh in refreshes], np.bool_),
            np.array([_vector(refresh.weights, plan) for refresh in refreshes], np.float32).reshape(
                -1, plan.parameters
            ),
            start,
        )
        if bad_step != FINISHED:
            classes = self._layers[-1].outputs
            raise UserError(
                f"A label in step {bad_step} is none of the model's {classes} classes (0 to {classes - 1})."
            )
        return torch.from_numpy(w[: plan.parameters].copy())

    def _plan(self, shape: tuple[int, ...], largest_batch: int) -> Plan:
        key = (shape, largest_batch)
        if key not in self._plans:  # two threads may both make it; they make the same
            self._plans[key] = make_plan(self._layers, shape, largest_batch)
        return self._plans[key]


def _vector(tensor: Tensor, plan: Plan) -> np.ndarray:
    if tensor.shape != (plan.parameters,):
        raise UserError(f"The model has {plan.parameters} weights; a vector of shape {tuple(tensor.shape)} was given.")
    return tensor.detach().contiguous().numpy()


def _indices(array: np.ndarray) -> np.ndarray:
    """Always the same type (a read-only array is another one to numba), so that nothing is compiled twice."""
    return np.require(array, np.int64, ["C", "W"])


def _options(task: Task) -> np.void:
    work, objective = task.work, task.objective
    adam = work.optimizer == "adam"
    momentum = 0.0 if adam else work.momentum
    plain = not adam and not momentum and not work.weight_decay and objective.plain and task.mask is None
    numbers = (task.lr, momentum, work.weight_decay, objective.proximal, objective.cosine, objective.l2)
    return np.array([(*numbers, adam, plain)], OPTIONS)[0]
