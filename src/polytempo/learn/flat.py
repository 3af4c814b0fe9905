"""Modules whose floats live in one flat vector."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from polytempo.core.disk.reading import read_npy
from polytempo.core.errors import UserError
from polytempo.core.model.vectors import travelling


def live_in_vector(module: nn.Module) -> Tensor:
    """Make all that travels of a module views of one new vector, and return that vector."""
    vector, begin = initial_vector(module), 0
    for tensor in travelling(module).values():
        end = begin + tensor.numel()
        tensor.data = vector[begin:end].view(tensor.shape)
        begin = end
    return vector


def initial_vector(module: nn.Module) -> Tensor:
    """The module's present weights as a vector of its own."""
    tensors = [tensor.detach().reshape(-1).to(torch.float32) for tensor in travelling(module).values()]
    return torch.cat(tensors) if tensors else torch.zeros(0)


def read_vector(path: Path, size: int) -> Tensor:
    """Weights from a file: a flat float32 .npy."""
    try:
        vector = read_npy(path)
    except (OSError, ValueError) as error:
        raise UserError(f"Initial weights {path} cannot be read as .npy: {error}.") from None
    if vector.shape != (size,) or vector.dtype.kind != "f":
        raise UserError(
            f"Initial weights {path}: expected {size} float32 numbers in one row, "
            f"got {vector.dtype} of shape {vector.shape}."
        )
    if not np.isfinite(vector).all():
        raise UserError(f"Initial weights {path}: expected finite numbers, got NaN or Inf.")
    return torch.from_numpy(vector.astype(np.float32))
