"""Modules whose floats live in one flat vector."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from polytempo.core.disk.reading import read_npy
from polytempo.core.errors import UserError
from polytempo.core.model.vectors import flatten, schema_of


def live_in_vector(module: nn.Module) -> Tensor:
    """Make all parameters and float buffers of a module views of one new vector, and return that vector."""
    schema = schema_of(module)
    vector = initial_vector(module)
    views = schema.views(vector)
    for name, tensor in _tensors(module).items():
        if name in views:
            tensor.data = views[name]
    return vector


def initial_vector(module: nn.Module) -> Tensor:
    """The module's present weights as a vector of its own."""
    return flatten(schema_of(module), _tensors(module))


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


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """By name; unlike in a state dict, buffers that are not persistent are among them."""
    return dict(module.named_parameters()) | dict(module.named_buffers())
