"""The fused engine: a client's whole local training in one call of compiled code (or in segments, if it is to listen
between them), for models of layers it knows."""

import threading
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from polytempo.core.errors import UserError
from polytempo.learn.fused.compiling import LANES
from polytempo.learn.fused.layers import UnsupportedError, layers_of
from polytempo.learn.fused.passes import Workspace, make_workspace, zeros
from polytempo.learn.fused.plan import EMBED, Plan, make_plan
from polytempo.learn.fused.scoring import write_outputs
from polytempo.learn.fused.training import FINISHED, OPTIONS, train
from polytempo.learn.job import Job, Refresh

LONGEST_SEGMENT = 0.02
"""Seconds after which a training that listens notices a refresh at the latest, unless one step takes longer."""


BATCHES = 16
"""Plans are made for batches of whole multiples of this, so that clients with fewer samples share one."""

SCORED_AT_ONCE = 64
"""Samples that go through all layers together when a model is scored."""


def why_unsupported(module: nn.Module) -> str | None:
    """Why the fused engine cannot train this module, or None if it can."""
    try:
        layers_of(module)
    except UnsupportedError as reason:
        return str(reason)
    return None


class FusedEngine:
    """Trains what ``layers_of`` knows, with cross-entropy. Weights stay in torch's own flat layout. Every thread has
    memory of its own, so any number of threads may train at once."""

    def __init__(self, module: nn.Module) -> None:
        reason = why_unsupported(module)
        if reason is not None:
            raise UserError(f"The fused engine cannot train this model: {reason}. Use --engine eager (or auto).")
        self._layers = layers_of(module)
        self._plans: dict[tuple[tuple[int, ...], int], Plan] = {}
        self._own = threading.local()

    def train(self, job: Job) -> Tensor:
        rows, offsets = _indices(job.batches.rows), _indices(job.batches.offsets)
        plan = self._plan(tuple(job.x.shape[1:]), int(np.diff(offsets).max(initial=1)))
        if len(job.x) != len(job.y):
            raise UserError(f"{len(job.x)} samples have {len(job.y)} labels. Each needs one.")
        _check_rows(rows, job.x)
        training = _Training(job, plan, rows, offsets, self._workspace(plan))
        if job.listen is None:
            training.run(0, len(job.batches), job.refreshes)
        else:
            training.run_listening()
        return torch.from_numpy(training.w[: plan.parameters].copy())

    def outputs(self, weights: Tensor, x: Tensor, rows: np.ndarray | None = None) -> Tensor:
        rows = np.arange(len(x)) if rows is None else _indices(rows)
        _check_rows(rows, x)
        plan = self._plan(tuple(x.shape[1:]), SCORED_AT_ONCE)
        w = _with_spare_lanes(_vector(weights, plan))
        outputs = np.empty((len(rows), plan.stages[-1]["filters"]), np.float32)
        numbers, words = _samples(x, plan)
        if not write_outputs(
            plan.stages, tuple(self._workspace(plan)), w, numbers, words, rows, SCORED_AT_ONCE, outputs.reshape(-1)
        ):
            raise UserError(f"A word is none of the model's. {_known_words(plan)}")
        return torch.from_numpy(outputs)

    def _plan(self, shape: tuple[int, ...], largest_batch: int) -> Plan:
        key = (shape, -(-largest_batch // BATCHES) * BATCHES)
        if key not in self._plans:  # two threads may both make it; they make the same
            self._plans[key] = make_plan(self._layers, *key)
        return self._plans[key]

    def _workspace(self, plan: Plan) -> Workspace:
        """This thread's memory for a plan. That of the two plans used last is kept: fresh pages cost more than the
        training of a small model."""
        kept: dict[int, tuple[Plan, Workspace]] = self._own.__dict__.setdefault("kept", {})
        used = kept.pop(id(plan), None) or (plan, make_workspace(plan))
        while len(kept) > 1:
            del kept[next(iter(kept))]
        kept[id(plan)] = used
        return used[1]


class _Training:
    """One job as the compiled code takes it: what stays the same, and what a segment of steps leaves to the next."""

    def __init__(self, job: Job, plan: Plan, rows: np.ndarray, offsets: np.ndarray, workspace: Workspace) -> None:
        anchor, linear, size = job.objective.anchor, job.objective.linear, plan.parameters
        self._job = job
        self._plan = plan
        self._workspace = workspace
        self._options = _options(job)
        self._data = (*_samples(job.x, plan), _indices(job.y.numpy()), rows, offsets)
        self._anchor = np.zeros(0, np.float32) if anchor is None else _vector(anchor, plan)
        self._linear = np.zeros(0, np.float32) if linear is None else _vector(linear, plan)
        self._mask = np.zeros(0, np.bool_) if job.mask is None else _vector(job.mask, plan)
        self._kept = np.zeros(0, np.bool_) if job.kept is None else _vector(job.kept, plan)
        self._began = _vector(job.start, plan)
        self.w = _with_spare_lanes(self._began)
        self._gradient = zeros(0 if self._options["plain"] else len(self.w))
        self._moments = np.zeros((2, size if self._options["adam"] else 0), np.float32)

    def run(self, first: int, last: int, refreshes: Sequence[Refresh]) -> None:
        """The steps from ``first`` to before ``last``, in one call."""
        plan = self._plan
        fresh = np.array([_vector(refresh.weights, plan) for refresh in refreshes], np.float32)
        fresh = fresh.reshape(-1, plan.parameters)
        bad_step = train(
            plan.stages,
            tuple(self._workspace),
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
            raise UserError(self._why_unknown(bad_step))
        if refreshes:
            self._began = fresh[-1]

    def _why_unknown(self, step: int) -> str:
        rows = torch.from_numpy(self._job.batches.only(step).rows)
        labels, classes = self._job.y[rows], self._plan.stages[-1]["filters"]
        if bool((labels < 0).any() or (labels >= classes).any()):
            return f"A label in step {step} is none of the model's {classes} classes (0 to {classes - 1})."
        return f"A word in step {step} is none of the model's. {_known_words(self._plan)}"

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


def _known_words(plan: Plan) -> str:
    return f"It has a vocabulary of {plan.stages[0]['filters']}: are the data and the model made for each other?"


def _check_rows(rows: np.ndarray, x: Tensor) -> None:
    if rows.size and not 0 <= rows.min() <= rows.max() < len(x):
        raise UserError(f"Rows up to {rows.max()} of {len(x)} samples were asked for.")


def _samples(x: Tensor, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """The samples' numbers, or their words; the other is empty."""
    words = bool(plan.stages[0]["kind"] == EMBED)
    expected = torch.int64 if words else torch.float32
    if x.dtype != expected:
        raise UserError(f"The fused engine needs {expected} samples here, not {x.dtype}. Convert them, or use eager.")
    flat = x.contiguous().numpy().reshape(-1)
    return (np.zeros(0, np.float32), _indices(flat)) if words else (flat, np.zeros(0, np.int64))


def _with_spare_lanes(vector: np.ndarray) -> np.ndarray:
    """A copy with zeros behind it, which whole vectors may reach into."""
    spare = zeros(len(vector) + LANES)
    spare[: len(vector)] = vector
    return spare


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
