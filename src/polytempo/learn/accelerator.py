"""Where torch computes: the CPU, or an accelerator that it knows."""

import copy
import threading
from collections import OrderedDict
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import chain

import torch
from torch import Tensor, nn

from polytempo.core.errors import UserError
from polytempo.learn.job import Job
from polytempo_client.imports import unknown

CPU = torch.device("cpu")
ACCELERATORS = ("cpu", "cuda", "mps")
KEPT = 4
"""Tensors of data that stay on a device: samples and labels, before and after a drift."""


def accelerator(name: str) -> torch.device:
    """The torch device of this name, if this machine has one."""
    if name not in ACCELERATORS:
        raise UserError(unknown("device", name, ACCELERATORS))
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not present[name]:
        raise UserError(f"torch finds no {name} device here. Use --device cpu, or install a torch built for {name}.")
    return torch.device(name)


def placed(module: nn.Module, device: torch.device) -> nn.Module:
    """The module if it lies on the device, otherwise a copy that does."""
    tensors = chain(module.parameters(), module.buffers())
    if all(tensor.device.type == device.type for tensor in tensors):
        return module
    return copy.deepcopy(module).to(device)


def placed_job(job: Job, device: torch.device) -> Job:
    """The job with its vectors on a device; its data stay where they are."""
    objective = replace(
        job.objective, anchor=_moved(job.objective.anchor, device), linear=_moved(job.objective.linear, device)
    )
    return replace(
        job,
        start=job.start.to(device),
        objective=objective,
        mask=_moved(job.mask, device),
        kept=_moved(job.kept, device),
    )


def _moved(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)


def own_stream(device: torch.device) -> AbstractContextManager[object]:
    """Within it, a thread's work on a GPU does not wait for that of other threads."""
    return torch.cuda.stream(torch.cuda.Stream(device)) if device.type == "cuda" else nullcontext()


class Resident:
    """Data of runs on a device: moved there once. Those used last are kept."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, tuple[Tensor, Tensor]] = OrderedDict()

    def __call__(self, data: Tensor) -> Tensor:
        if data.device.type == self._device.type:
            return data
        with self._lock:
            if id(data) not in self._kept:
                self._kept[id(data)] = data, data.to(self._device)
            self._kept.move_to_end(id(data))
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return self._kept[id(data)][1]
