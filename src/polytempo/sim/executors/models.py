"""Which models travel to a cluster by value, and which by reference."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

import ray
from torch import Tensor

from polytempo.sim.executors.executor import Computation
from polytempo.sim.executors.travel import Address, address_of

LARGE = 100_000
"""Bytes from which a model is put into the cluster's memory once several calls need it."""
MOST_PUT = 256
"""Models that are kept there."""


@dataclass(eq=False)
class OpenModel:
    """A tensor that open computations hold. It is known as long as one of them is open."""

    name: str
    tensor: Tensor
    has_travelled: bool = False
    reference: Any = None
    """Into the cluster's memory."""


class OpenModels:
    """The models of open computations. One that a first call has taken along, and that a second one needs, is put into
    the cluster's memory."""

    def __init__(self, data: Iterable[Tensor]) -> None:
        self._data = set(map(address_of, data))
        self._known: WeakValueDictionary[Address, OpenModel] = WeakValueDictionary()
        self._put: WeakValueDictionary[str, OpenModel] = WeakValueDictionary()
        """The one that was used last is the last."""
        self._count = 0

    def of(self, computation: Computation) -> list[OpenModel]:
        """To be held with the computation."""
        large = [of for of in computation.tensors() if of.nbytes >= LARGE and of.is_contiguous()]
        addresses = {address_of(tensor): tensor for tensor in large}
        return [self._model(address, tensor) for address, tensor in addresses.items() if address not in self._data]

    def referred_to(self, models: Iterable[OpenModel]) -> list[OpenModel]:
        """Those of the models of a call that it refers to; it takes the others along."""
        referred: list[OpenModel] = []
        for model in dict.fromkeys(models):
            if model.has_travelled:
                self._refer_to(model)
                referred.append(model)
            model.has_travelled = True
        return referred

    def _model(self, address: Address, tensor: Tensor) -> OpenModel:
        known = self._known.get(address)
        if known is None:
            self._count += 1
            known = self._known[address] = OpenModel(f"model {self._count}", tensor)
        return known

    def _refer_to(self, model: OpenModel) -> None:
        if model.reference is None:
            model.reference = ray.put(model.tensor.numpy())
        self._put[model.name] = self._put.pop(model.name, model)
        if len(self._put) > MOST_PUT:
            self._put.pop(next(iter(self._put))).reference = None
