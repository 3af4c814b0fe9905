"""The one save/load contract: checkpoints, snapshots and digests are all made of ``pack``.

State is plain data (None, numbers, strings, lists, tuples, dicts, deques), tensors, arrays, and objects of classes
that are declared ``@stateful``. Nothing else: no pickle, and no sets, whose order would not survive a reload.
Tensors and stateful objects that are shared stay shared.
"""

import dataclasses
import hashlib
import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from polytempo.core.disk.files import write_whole
from polytempo.core.disk.tensor_file import memory_of, pieces_of, read_tensors, write_tensors
from polytempo.core.model.vectors import aligned
from polytempo.core.stateful import is_stateful, state_name, stateful_class
from polytempo_client.disk.packing import Packer, as_text, unpackable


def pack(value: object) -> tuple[str, list[Tensor]]:
    """JSON text of the structure, and the tensors it refers to by number."""
    packer = _Packer()
    return as_text(packer.pack(value)), packer.tensors


def unpack(text: str, tensors: list[Tensor], plain: bool = False) -> Any:
    """The value that ``pack`` was given. ``plain``: only data and tensors, no objects, as fits what strangers send."""
    return _Unpacker(tensors, plain).unpack(json.loads(text))


def digest(*values: object) -> str:
    """sha256 over the packed values: equal digests mean bit-identical state. Whether equal tensors are shared does not
    count: a state that was loaded shares less with its surroundings than one that was made."""
    sha = hashlib.sha256()
    for value in values:
        packer = _Packer(by_content=True)
        sha.update(as_text(packer.pack(value)).encode())
    return sha.hexdigest()


def save(value: object, path: Path, mode: int = 0o644) -> None:
    """Write the state to one file, so that a crash leaves the old file or the new one, never a part."""
    save_packed(*pack(value), path, mode)


def save_packed(text: str, tensors: list[Tensor], path: Path, mode: int = 0o644) -> None:
    """The same, of what ``pack`` gave."""
    named = _named(text, tensors)
    write_whole(path, lambda temporary: write_tensors(temporary, named), mode)


def packed_pieces(text: str, tensors: list[Tensor]) -> list[memoryview]:
    """What such a file holds, without one."""
    return pieces_of(_named(text, tensors))


def _named(text: str, tensors: list[Tensor]) -> dict[str, Tensor]:
    # The text is a tensor too: a header may not be longer than 100 MB.
    letters = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    return {str(i): tensor for i, tensor in enumerate(tensors)} | {"state": letters}


def load(path: Path) -> Any:
    """Read what ``save`` wrote."""
    with safe_open(path, framework="pt") as file:
        count = len(list(file.keys())) - 1
        text = file.get_tensor("state").numpy().tobytes().decode()
        return unpack(text, [aligned(file.get_tensor(str(i))) for i in range(count)])


def loads(content: bytes | bytearray) -> Any:
    """The same, of what the file holds. ValueError, LookupError or TypeError say what is wrong with it."""
    tensors = read_tensors(content)
    text = tensors.pop("state").numpy().tobytes().decode()
    return unpack(text, [aligned(tensors[str(i)]) for i in range(len(tensors))])


class _Packer(Packer):
    def __init__(self, by_content: bool = False) -> None:
        self.tensors: list[Tensor] = []
        self._by_content = by_content  # name a tensor by the hash of its bytes, not by its number
        self._numbers: dict[int, int | str] = {}  # id of a tensor or object -> its number or hash
        self._objects = 0
        self._alive: list[object] = []  # keeps ids valid while packing

    def _pack_other(self, value: object) -> Any:
        if isinstance(value, Tensor):
            return self._tensor("tensor", value, value)
        if isinstance(value, np.ndarray):
            return self._array(value)
        if is_stateful(type(value)):
            return self._object(value)
        raise unpackable(value)

    def _array(self, value: np.ndarray) -> dict[str, Any]:
        known = id(value) in self._numbers
        return self._tensor("array", value, torch.from_numpy(value if known else value.copy()))

    def _tensor(self, kind: str, owner: object, tensor: Tensor) -> dict[str, Any]:
        if id(owner) not in self._numbers:
            self._numbers[id(owner)] = _content(tensor) if self._by_content else len(self.tensors)
            self._alive.append(owner)
            self.tensors.append(tensor)
        return {kind: self._numbers[id(owner)], "type": str(tensor.dtype), "shape": list(tensor.shape)}

    def _object(self, value: Any) -> dict[str, Any]:
        if id(value) in self._numbers and not self._by_content:
            return {"again": self._numbers[id(value)]}
        self._numbers[id(value)] = self._objects
        self._alive.append(value)
        self._objects += 1
        if hasattr(value, "save_state"):
            saved = value.save_state()
        else:
            saved = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"object": state_name(type(value)), "state": {name: self.pack(v) for name, v in saved.items()}}


def _content(tensor: Tensor) -> str:
    return hashlib.sha256(memory_of(tensor.detach().contiguous())).hexdigest()


class _Unpacker:
    def __init__(self, tensors: list[Tensor], plain: bool) -> None:
        self._tensors = tensors
        self._plain = plain
        self._arrays: dict[int, np.ndarray] = {}
        self._objects: dict[int, Any] = {}

    def unpack(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self.unpack(v) for v in tree]
        if not isinstance(tree, dict):
            return tree
        if "tuple" in tree:
            return tuple(self.unpack(v) for v in tree["tuple"])
        if "deque" in tree:
            return deque((self.unpack(v) for v in tree["deque"]), tree["maxlen"])
        if "dict" in tree:
            return {self.unpack(k): self.unpack(v) for k, v in tree["dict"]}
        if "tensor" in tree:
            return self._tensors[tree["tensor"]]
        if "array" in tree:
            return self._arrays.setdefault(tree["array"], self._tensors[tree["array"]].numpy())
        if "again" in tree:
            return self._objects[tree["again"]]
        return self._object(tree)

    def _object(self, tree: dict[str, Any]) -> Any:
        if self._plain:
            raise ValueError("an object where only plain data may be")
        number = len(self._objects)
        self._objects[number] = None  # numbered before its parts, as when packing
        cls: Any = stateful_class(tree["object"])
        saved = {name: self.unpack(v) for name, v in tree["state"].items()}
        self._objects[number] = cls.load_state(saved) if hasattr(cls, "load_state") else cls(**saved)
        return self._objects[number]
