"""A model is one flat float32 vector and a schema of names and shapes: torch's side of it."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from polytempo.core.errors import UserError
from polytempo.core.model.frozen import fingerprint_of, frozen_tensors
from polytempo_client.model.schema import Schema

ALIGNMENT = 64
"""Bytes: where torch puts what it makes."""
LARGEST_HALF = 65504.0


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it where torch itself would have put it. A library's sum of products depends, in the
    last bit, on where its numbers lie; read from a file or the network they may lie anywhere."""
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def tensor_of(array: np.ndarray) -> Tensor:
    """The array as a tensor, aligned: without a copy if it lies well."""
    return aligned(torch.from_numpy(array))


def floats(data: memoryview) -> Tensor:
    """A vector of the float32 numbers in these bytes."""
    return aligned(torch.frombuffer(data, dtype=torch.float32)) if len(data) else torch.zeros(0)


def schema_of(module: nn.Module) -> Schema:
    """Names and shapes of a module's parameters that train and of its float buffers, without its frozen parts."""
    tensors, frozen = travelling(module), frozen_tensors(module)
    parameters = [tensor for tensor in tensors.values() if isinstance(tensor, nn.Parameter)]
    if frozen and not parameters:
        raise UserError("All parameters of the model are frozen. Expected at least one with requires_grad=True.")
    shapes = tuple(tuple(tensor.shape) for tensor in tensors.values())
    return Schema(tuple(tensors), shapes, sum(p.numel() for p in parameters), fingerprint_of(frozen))


def travelling(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of the flat vector, by name and in order. Unlike in a state dict, buffers that are not persistent
    are among them."""
    stay = {id(tensor) for tensor in frozen_tensors(module).values()}
    parameters = {name: p for name, p in module.named_parameters() if id(p) not in stay}
    buffers = {name: b for name, b in module.named_buffers() if b.is_floating_point() and id(b) not in stay}
    return parameters | buffers


def flatten(schema: Schema, tensors: Mapping[str, Tensor]) -> Tensor:
    """One flat vector from named tensors, for example a state dict."""
    schema.check_complete(tensors)
    return torch.cat([tensors[name].detach().reshape(-1).to(torch.float32) for name in schema.names])


def trained_entries(schema: Schema, mask: Tensor | None, trainable: Sequence[str]) -> Tensor | None:
    """The coordinates that an order with this mask and these layers trains and uploads; None means all."""
    if not trainable:
        return mask
    layers = torch.from_numpy(schema.layers(trainable))
    return layers if mask is None else layers & mask


def half(vector: Tensor) -> Tensor:
    """A model in half precision; as it is, if one of its entries is too large for that."""
    low, high = vector.aminmax()
    return vector.half() if low >= -LARGEST_HALF and high <= LARGEST_HALF else vector
