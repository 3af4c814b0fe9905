"""The eager engine: any torch module, one client at a time per thread. It is the reference for the fused engine."""

import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polytempo.core.errors import UserError
from polytempo.core.model.frozen import copy_of, frozen_tensors, set_training
from polytempo.core.model.vectors import schema_of, travelling
from polytempo.core.orders import Objective
from polytempo.learn.accelerator import CPU, Resident, own_stream, placed, placed_job
from polytempo.learn.dropout import seeded_dropout
from polytempo.learn.forward import Forward
from polytempo.learn.job import Job
from polytempo_client.model.schema import Schema

Loss = Callable[[Tensor, Tensor], Tensor]


class EagerEngine:
    """Forward, autograd and the optimiser's formula on flat vectors; parameters and gradients of the module are views
    of them."""

    def __init__(self, module: nn.Module, loss: Loss = F.cross_entropy, device: torch.device = CPU) -> None:
        self._module = placed(module, device)
        self._schema = schema_of(module)
        self._loss = loss
        self._device = device
        self._resident = Resident(device)
        self._forward = Forward(self._module, device, self._resident)
        self._own = threading.local()

    def outputs(self, weights: Tensor, x: Tensor, rows: np.ndarray | None = None) -> Tensor:
        return self._forward.outputs(weights, x, rows)

    def train(self, job: Job) -> Tensor:
        workbench = self._workbench()
        with workbench.stream:
            return self._train(placed_job(job, self._device), workbench)

    def _train(self, job: Job, workbench: "_Workbench") -> Tensor:
        workbench.load(job)
        x, y = self._resident(job.x), self._resident(job.y)
        began = job.start
        own_anchor = job.objective.anchor
        offsets = job.batches.offsets.tolist()
        rows = torch.from_numpy(job.batches.rows).to(self._device)
        optimise = _adam if job.work.optimizer == "adam" else _sgd
        for step in range(len(job.batches) + 1):
            refreshes, goes_on = job.due(step)
            for refresh in refreshes:
                fresh = refresh.weights.to(self._device)
                workbench.refresh(fresh, began if refresh.rebase else None, job.kept)
                began = fresh
            if not goes_on:
                break
            batch = rows[offsets[step] : offsets[step + 1]]
            workbench.gradient.zero_()
            self._loss(_forward(workbench.module, x[batch]), y[batch]).backward()
            _regularise(
                workbench.gradient, workbench.parameters, began if own_anchor is None else own_anchor, job.objective
            )
            _decay_and_mask(workbench, job)
            optimise(workbench, job, step)
        workbench.restore_buffers(began)
        return workbench.vector.to("cpu", copy=True)

    def _workbench(self) -> "_Workbench":
        if not hasattr(self._own, "workbench"):
            self._own.workbench = _Workbench(copy_of(self._module), self._schema, self._device)
        return self._own.workbench


class _Workbench:
    """One thread's module, with the flat vectors it lives in."""

    def __init__(self, module: nn.Module, schema: Schema, device: torch.device) -> None:
        torch.set_num_threads(1)
        self.stream = own_stream(device)
        self.schema = schema
        self.module, self.dropouts = seeded_dropout(set_training(module))
        self.vector = torch.empty(self.schema.size, device=device)
        self.parameters = self.vector[: self.schema.parameter_count]
        self.gradient = torch.zeros_like(self.parameters)
        views = self.schema.views(self.vector)
        for name, tensor in travelling(module).items():
            tensor.data = views[name]
            if isinstance(tensor, nn.Parameter):
                tensor.grad = self.gradient[self.schema.spans[name]].view(tensor.shape)
        frozen = {id(tensor) for tensor in frozen_tensors(module).values()}
        self._counters = [b for b in module.buffers() if not b.is_floating_point() and id(b) not in frozen]
        self._counter_starts = [b.clone() for b in self._counters]
        self.mask: Tensor | None = None
        self.first_moment = torch.zeros_like(self.parameters)
        self.second_moment = torch.zeros_like(self.parameters)

    def load(self, job: Job) -> None:
        self.vector.copy_(job.start)
        for counter, start in zip(self._counters, self._counter_starts, strict=True):
            counter.copy_(start)
        for i, dropout in enumerate(self.dropouts):
            dropout.generator.manual_seed(job.seed * 1009 + i)
        self.mask = job.mask
        self.first_moment.zero_()
        self.second_moment.zero_()

    def restore_buffers(self, began: Tensor) -> None:
        """Buffers outside the mask (statistics of a layer that does not train): a forward pass moves them, no gradient
        does."""
        if self.mask is not None:
            count = self.schema.parameter_count
            self.vector[count:] = torch.where(self.mask[count:], self.vector[count:], began[count:])

    def refresh(self, weights: Tensor, progress_since: Tensor | None, kept: Tensor | None) -> None:
        fresh = weights if progress_since is None else self.vector + (weights - progress_since)
        self.vector.copy_(fresh if kept is None else torch.where(kept, self.vector, fresh))


def _forward(module: nn.Module, x: Tensor) -> Tensor:
    try:
        return module(x)
    except ValueError as error:
        if len(x) > 1 or "more than 1 value per channel" not in str(error):
            raise
        raise UserError(
            "A batch of one sample cannot go through batch norm, and a client has only one sample or the batch size is "
            "below 3. Choose a larger --batch-size and more --min-samples, or a model with group norm."
        ) from error


def _regularise(gradient: Tensor, w: Tensor, anchor: Tensor, objective: Objective) -> None:
    """Add the gradient of the objective's terms."""
    if objective.plain:
        return
    if objective.linear is not None:
        gradient.add_(objective.linear[: len(w)])
    anchor = anchor[: len(w)]
    away = w - anchor
    if objective.proximal:
        gradient.add_(away, alpha=objective.proximal)
    if objective.l2:
        distance = away.norm()
        if distance > 0:
            gradient.add_(away * (objective.l2 / distance))
    if objective.cosine:
        norms = w.norm() * anchor.norm()
        if norms > 0:
            cosine = torch.dot(w, anchor) / norms
            gradient.sub_(objective.cosine * (anchor / norms - w * (cosine / torch.dot(w, w))))


def _decay_and_mask(workbench: _Workbench, job: Job) -> None:
    if job.work.weight_decay:
        workbench.gradient.add_(workbench.parameters, alpha=job.work.weight_decay)
    if workbench.mask is not None:
        workbench.gradient.mul_(workbench.mask[: len(workbench.gradient)])


def _sgd(workbench: _Workbench, job: Job, step: int) -> None:
    g, w = workbench.gradient, workbench.parameters
    if job.work.momentum:
        g = workbench.first_moment.mul_(job.work.momentum).add_(g)
    w.add_(g, alpha=-job.lr)


def _adam(workbench: _Workbench, job: Job, step: int) -> None:
    """Kingma and Ba (2015), beta .9 and .999, eps 1e-8, weight decay added to the gradient."""
    g, w = workbench.gradient, workbench.parameters
    m, v = workbench.first_moment, workbench.second_moment
    m.lerp_(g, 0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    scale = (v.sqrt() / (1 - 0.999 ** (step + 1)) ** 0.5).add_(1e-8)
    w.addcdiv_(m, scale, value=-job.lr / (1 - 0.9 ** (step + 1)))
