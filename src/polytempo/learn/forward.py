"""Forward passes by torch, without training."""

import threading
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from polytempo.core.errors import UserError
from polytempo.core.model.frozen import copy_of
from polytempo.learn.accelerator import CPU, Resident, own_stream
from polytempo.learn.flat import live_in_vector

CHUNK = 1000
"""Rows per forward pass. Fixed, so that a score never depends on who is scored beside whom."""


class Outputs(Protocol):
    def __call__(self, weights: Tensor, x: Tensor, rows: np.ndarray | None = None) -> Tensor:
        """The model's outputs for these rows, or for all rows without copying them."""


class Forward:
    """A module as a function of its weights and samples; may be called from several threads at once."""

    def __init__(self, module: nn.Module, device: torch.device = CPU, resident: Resident | None = None) -> None:
        self._module = module
        self._device = device
        self._resident = resident or Resident(device)
        self._own = threading.local()

    def outputs(self, weights: Tensor, x: Tensor, rows: np.ndarray | None = None) -> Tensor:
        module, vector = self._workbench()
        with self._own.stream, torch.inference_mode():
            vector.copy_(weights)
            x = self._resident(x)
            if rows is None:
                return torch.cat([module(chunk) for chunk in x.split(CHUNK)]).cpu()
            chosen = torch.from_numpy(rows).to(self._device)
            return torch.cat([module(x[some]) for some in chosen.split(CHUNK)]).cpu()

    def features(self, weights: Tensor, x: Tensor, rows: np.ndarray) -> Tensor:
        """What the model's last linear layer is given for these rows."""
        seen: list[Tensor] = []
        linear = [part for part in self._workbench()[0].modules() if isinstance(part, nn.Linear)]
        if not linear:
            raise UserError("The model has no linear layer, so it has no last-layer features.")
        hook = linear[-1].register_forward_pre_hook(lambda _, given: seen.append(given[0].flatten(1)))
        try:
            self.outputs(weights, x, rows)
        finally:
            hook.remove()
        return torch.cat(seen)

    def _workbench(self) -> tuple[nn.Module, Tensor]:
        if not hasattr(self._own, "module"):
            torch.set_num_threads(1)
            self._own.stream = own_stream(self._device)
            self._own.module = copy_of(self._module).eval()
            self._own.vector = live_in_vector(self._own.module)
            self._own.module.requires_grad_(False)
        return self._own.module, self._own.vector
