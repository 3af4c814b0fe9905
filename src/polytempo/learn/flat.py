"""Modules whose floats live in one flat vector."""

import torch
from torch import Tensor, nn

from polytempo.core.vectors import Schema


def live_in_vector(module: nn.Module) -> Tensor:
    """Make all parameters and float buffers of a module views of one new vector, and return that vector."""
    schema = Schema.of(module)
    vector = schema.flatten({**dict(module.named_parameters()), **dict(module.named_buffers())})
    views = schema.views(vector)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if name in views:
            tensor.data = views[name]
    return vector


def initial_vector(module: nn.Module) -> Tensor:
    """The module's present weights as a vector of its own."""
    return Schema.of(module).flatten(torch.nn.Module.state_dict(module))
