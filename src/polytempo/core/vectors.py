"""A model is one flat float32 vector and a schema of names and shapes. State dicts exist only at the edges."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn

from polytempo.core.errors import UserError

ALIGNMENT = 64
"""Bytes: where torch puts what it makes."""


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it where torch itself would have put it. A library's sum of products depends, in the
    last bit, on where its numbers lie; read from a file or the network they may lie anywhere."""
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


@dataclass(frozen=True)
class Schema:
    """Names and shapes of a model's floats, in the order of the flat vector: the parameters, then the float buffers
    (BatchNorm statistics travel with the model). Integer buffers are not part of it."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    parameter_count: int
    """How many of the floats are parameters: the first ones."""

    @classmethod
    def of(cls, module: nn.Module) -> "Schema":
        parameters = dict(module.named_parameters())
        buffers = {name: b for name, b in module.named_buffers() if b.is_floating_point()}
        tensors = parameters | buffers
        return cls(
            tuple(tensors), tuple(tuple(t.shape) for t in tensors.values()), sum(p.numel() for p in parameters.values())
        )

    @cached_property
    def size(self) -> int:
        return sum(prod(shape) for shape in self.shapes)

    @cached_property
    def spans(self) -> dict[str, slice]:
        """Where each named tensor lies in the flat vector."""
        spans, begin = {}, 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            spans[name] = slice(begin, begin + prod(shape))
            begin += prod(shape)
        return spans

    @property
    def last_layer(self) -> str:
        """The name of the layer that holds the last parameter: in a usual model, the one that makes its outputs."""
        last = next(reversed([n for n, span in self.spans.items() if span.stop <= self.parameter_count]))
        return last.rpartition(".")[0] or last

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """One flat vector from named tensors, for example a state dict."""
        missing = [name for name in self.names if name not in tensors]
        if missing:
            raise UserError(f"The model has no tensor named {missing[0]!r}; expected {', '.join(self.names)}.")
        return torch.cat([tensors[name].detach().reshape(-1).to(torch.float32) for name in self.names])

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Named views of a flat vector: no copy."""
        return {name: vector[self.spans[name]].view(shape) for name, shape in zip(self.names, self.shapes, strict=True)}

    def layers(self, prefixes: Sequence[str]) -> Tensor:
        """A mask over the flat vector that is true in the tensors whose names start with one of the prefixes."""
        mask = torch.zeros(self.size, dtype=torch.bool)
        for prefix in prefixes:
            chosen = [name for name in self.names if name == prefix or name.startswith(prefix + ".")]
            if not chosen:
                raise UserError(f"No layer is named {prefix!r}; expected a prefix of {', '.join(self.names)}.")
            for name in chosen:
                mask[self.spans[name]] = True
        return mask

    def trained(self, mask: Tensor | None, trainable: Sequence[str]) -> Tensor | None:
        """The coordinates that an order with this mask and these layers trains and uploads; None means all."""
        if not trainable:
            return mask
        layers = self.layers(trainable)
        return layers if mask is None else layers & mask
