"""How computations and results travel between processes: a pickle of their structure, and beside it the memory of their
tensors and arrays. A tensor that both sides have is only named, so that a model which many computations start from
travels once, and an update does not bring its start back."""

import io
import pickle
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from ray import cloudpickle
from torch import Tensor

SMALL = 64
"""Bytes up to which an array is part of the pickle."""

Address = tuple[int, int]
"""Of memory: where it begins, and how many bytes it has."""
Known = Mapping[str, Tensor]
"""Tensors by the names that both sides know them by."""


class Parcel(NamedTuple):
    """What travels."""

    body: bytes
    memory: list[np.ndarray]
    """Bytes."""


def pack(value: Any, known: Known) -> tuple[Parcel, list[Tensor]]:
    """What travels of a value, and the tensors whose memory does, one for each piece of memory."""
    file = io.BytesIO()
    packer = _Packer(file, known)
    packer.dump(value)
    return Parcel(file.getvalue(), [_bytes_of(tensor).numpy() for tensor in packer.memory]), packer.memory


def unpack(parcel: Parcel, known: Known) -> tuple[Any, list[Tensor]]:
    """The value, in memory of its own, and the tensors that hold it, one for each piece of memory."""
    memory = list(map(own_memory, parcel.memory))
    unpacker = _Unpacker(io.BytesIO(parcel.body))
    unpacker.memory, unpacker.known = memory, known
    return unpacker.load(), memory


def named(memory: list[Tensor]) -> dict[str, Tensor]:
    """The tensors of a parcel by the names that an answer to it may use for them."""
    return {f"sent {place}": tensor for place, tensor in enumerate(memory)}


def own_memory(content: np.ndarray) -> Tensor:
    """A copy that lies where torch would put it. What has travelled lies in memory of others, which cannot be
    written and may go away."""
    copy = torch.empty(content.nbytes, dtype=torch.uint8)
    copy.numpy()[:] = content.reshape(-1).view(np.uint8)
    return copy


def shared_memory(content: np.ndarray) -> Tensor:
    """A tensor over memory that several processes have. It must not be changed."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(content)


def address_of(tensor: Tensor) -> Address:
    """Where a contiguous tensor lies. Two tensors that lie in the same place are the same as long as one of them is
    held."""
    return tensor.data_ptr(), tensor.nbytes


class _Packer(cloudpickle.CloudPickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, known: Known) -> None:
        super().__init__(file, protocol=5)
        self.memory: list[Tensor] = []
        self._names: dict[Address, str | int] = {address_of(tensor): name for name, tensor in known.items()}

    def persistent_id(self, of: Any) -> Any:
        if type(of) is Tensor and _is_plain(of):
            return self._reference("tensor", of, of.contiguous())
        if type(of) is np.ndarray and of.nbytes > SMALL and of.dtype.kind in "biuf":
            return self._reference("array", of, shared_memory(np.ascontiguousarray(of)))
        return None

    def _reference(self, kind: str, of: Any, lies: Tensor) -> tuple[Any, ...]:
        address = address_of(lies)
        if address not in self._names:
            self._names[address] = len(self.memory)
            self.memory.append(lies)
        return kind, self._names[address], lies.dtype, tuple(of.shape)


class _Unpacker(pickle.Unpickler):
    memory: list[Tensor]
    known: Known

    def persistent_load(self, reference: Any) -> Any:
        kind, name, dtype, shape = reference
        tensor = self.memory[name] if isinstance(name, int) else self.known[name]
        if tensor.dtype != dtype or tensor.shape != shape:
            tensor = _bytes_of(tensor).view(dtype).view(shape)
        return tensor if kind == "tensor" else tensor.numpy()


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _is_plain(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.requires_grad
