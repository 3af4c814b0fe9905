"""Modules whose floats live in one flat vector."""

from torch import Tensor, nn

from polytempo.core.vectors import Schema


def live_in_vector(module: nn.Module) -> Tensor:
    """Make all parameters and float buffers of a module views of one new vector, and return that vector."""
    schema = Schema.of(module)
    vector = initial_vector(module)
    views = schema.views(vector)
    for name, tensor in _tensors(module).items():
        if name in views:
            tensor.data = views[name]
    return vector


def initial_vector(module: nn.Module) -> Tensor:
    """The module's present weights as a vector of its own."""
    return Schema.of(module).flatten(_tensors(module))


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """By name; unlike in a state dict, buffers that are not persistent are among them."""
    return dict(module.named_parameters()) | dict(module.named_buffers())
