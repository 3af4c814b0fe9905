"""Names and shapes of a model's floats. A model itself is one flat float32 vector; named tensors exist only at the
edges. Torch's side of it is in ``vectors``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from polytempo_client.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Vector = TypeVar("Vector", np.ndarray, "Tensor")


@dataclass(frozen=True)
class Schema:
    """Names and shapes, in the order of the flat vector: the parameters that train, then the float buffers (BatchNorm
    statistics travel with the model). Integer buffers and frozen parts are not part of it."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    parameter_count: int
    """How many of the floats are parameters: the first ones."""
    frozen: str = ""
    """Fingerprint of the model's frozen parts; empty if it has none."""

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

    def views(self, vector: Vector) -> dict[str, Vector]:
        """Named views of a flat vector: no copy."""
        return {
            name: vector[self.spans[name]].reshape(shape) for name, shape in zip(self.names, self.shapes, strict=True)
        }

    def flatten(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """One flat vector from named arrays."""
        self.check_complete(arrays)
        return np.concatenate([np.asarray(arrays[name], np.float32).reshape(-1) for name in self.names])

    def check_complete(self, tensors: Mapping[str, object]) -> None:
        missing = [name for name in self.names if name not in tensors]
        if missing:
            raise UserError(f"The model has no tensor named {missing[0]!r}; expected {', '.join(self.names)}.")

    def layers(self, prefixes: Sequence[str]) -> np.ndarray:
        """A mask over the flat vector that is true in the tensors whose names start with one of the prefixes."""
        mask = np.zeros(self.size, bool)
        for prefix in prefixes:
            chosen = [name for name in self.names if name == prefix or name.startswith(prefix + ".")]
            if not chosen:
                raise UserError(f"No layer is named {prefix!r}; expected a prefix of {', '.join(self.names)}.")
            for name in chosen:
                mask[self.spans[name]] = True
        return mask

    def trained(self, mask: np.ndarray | None, trainable: Sequence[str]) -> np.ndarray | None:
        """The coordinates that an order with this mask and these layers trains and uploads; None means all."""
        if not trainable:
            return mask
        layers = self.layers(trainable)
        return layers if mask is None else layers & mask
