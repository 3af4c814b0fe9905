"""Objects that stand in settings in place of names: what they are in words, and a digest to know them again by.

A digest covers arrays, tensors, modules with their weights, the code of functions and classes, defaults and closures.
It does not cover what code refers to by global names.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

OTHERS_CODE = ("builtins", "torch", "numpy", "abc", "typing", "collections", "functools")
"""Packages whose classes are known by their name."""
TORCH_S_OWN = frozenset(vars(nn.Module()))
"""What torch keeps in every module. Parameters, buffers and parts are fed by themselves."""
PLAIN = (bool, int, float, complex, str, bytes, tuple, list, set, frozenset, Mapping)
DATA = (*PLAIN, np.ndarray, Tensor, nn.Module, partial)
"""Members of a class that are values and not code."""


@dataclass(frozen=True, eq=False)
class Given:
    """An object that a setting was given in place of a name."""

    thing: Any
    """Ready to be used."""
    name: str
    """What the settings say in its place."""
    facts: Mapping[str, Any]
    """Its type, its shape where it has one, and its digest: what config.json holds."""


def given(thing: Any, title: str, kind: str, of: object, **facts: Any) -> Given:
    """An object with its name and facts. ``of`` is what its digest is taken of."""
    known = digest_of(of)
    return Given(thing, f"{title} #{known[:8]}", {"type": kind, **facts, "digest": known})


def described(thing: object, depth: int = 2) -> str:
    """Type and shape of an object, never its content; of lists and dicts, as many levels of what is inside."""
    kind = type_name(thing)
    shape = getattr(thing, "shape", None)
    if isinstance(shape, tuple) and all(isinstance(side, int) for side in shape):
        dtype = getattr(thing, "dtype", None)
        of = "" if dtype is None else f" of {str(dtype).removeprefix('torch.')}"
        return f"{kind}{of} with shape {tuple(shape)}"
    if isinstance(thing, list | tuple):
        inner = ", ".join(described(part, depth - 1) for part in thing[:4]) + (", ..." if len(thing) > 4 else "")
        return f"{kind} of {len(thing)}" + (f" ({inner})" if thing and depth else "")
    if isinstance(thing, Mapping):
        first = described(next(iter(thing.values()), None), depth - 1)
        return f"{kind} of {len(thing)}" + (f" (the first: {first})" if thing and depth else "")
    return kind


def type_name(thing: object) -> str:
    """The name of an object's type, with its package where it is not Python's own; of a class or function its own."""
    if isinstance(thing, type):
        return f"class {thing.__name__}"
    if isinstance(thing, FunctionType):
        return f"function {thing.__name__}"
    kind = type(thing)
    package = kind.__module__.partition(".")[0]
    return kind.__name__ if package in ("builtins", "__main__") else f"{package} {kind.__name__}"


def title_of(code: object) -> str:
    """What a function, a class or an object with code is called."""
    if isinstance(code, partial):
        return title_of(code.func)
    name = getattr(code, "__name__", type(code).__name__)
    return "lambda" if name == "<lambda>" else str(name)


def digest_of(thing: object) -> str:
    """Equal objects have equal digests, in another process too."""
    feeder = _Feeder()
    feeder.feed(thing)
    return feeder.hash.hexdigest()


class _Feeder:
    """Feeds objects to a hash, each kind with its name before it."""

    def __init__(self) -> None:
        self.hash = hashlib.blake2b(digest_size=16)
        self._inside: list[int] = []
        """The objects that are being fed: one that holds itself is named and not entered again."""

    def feed(self, thing: object) -> None:
        if id(thing) in self._inside:
            self._word("again", len(self._inside) - self._inside.index(id(thing)))
            return
        self._inside.append(id(thing))
        self._enter(thing)
        self._inside.pop()

    def _enter(self, thing: object) -> None:
        if thing is None or isinstance(thing, bool | int | float | complex | str | bytes):
            self._word(type(thing).__name__, thing)
        elif isinstance(thing, Tensor):
            self._array(thing.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy(), thing.dtype, thing.shape)
        elif isinstance(thing, np.ndarray) and thing.dtype != object:
            self._array(np.ascontiguousarray(thing), thing.dtype, thing.shape)
        elif isinstance(thing, set | frozenset):
            self._all("set", sorted(thing, key=repr))
        elif isinstance(thing, Mapping):
            self._all("mapping", [part for pair in thing.items() for part in pair])
        elif isinstance(thing, list | tuple | np.ndarray):
            self._all("sequence", list(thing))
        else:
            self._code(thing)

    def _code(self, thing: object) -> None:
        if isinstance(thing, CodeType):
            self._all("code", [thing.co_code, thing.co_names, thing.co_varnames, thing.co_consts])
        elif isinstance(thing, FunctionType):
            cells = [cell.cell_contents for cell in thing.__closure__ or () if _is_filled(cell)]
            self._all("function", [thing.__code__, thing.__defaults__, thing.__kwdefaults__, cells])
        elif isinstance(thing, MethodType):
            self._all("method", [thing.__func__, thing.__self__])
        elif isinstance(thing, staticmethod | classmethod):
            self.feed(thing.__func__)
        elif isinstance(thing, property):
            self._all("property", [thing.fget, thing.fset])
        elif isinstance(thing, partial):
            self._all("partial", [thing.func, thing.args, thing.keywords])
        elif isinstance(thing, type):
            self._class(thing)
        elif isinstance(thing, nn.Module):
            own = {name: value for name, value in vars(thing).items() if name not in TORCH_S_OWN}
            tensors = [dict(thing._parameters), dict(thing._buffers), dict(thing._modules)]
            self._all("module", [type(thing), own, *tensors])
        else:
            self._all("object", [type(thing), getattr(thing, "__dict__", None), _slots(thing)])

    def _class(self, cls: type) -> None:
        self._word("class", cls.__qualname__)
        if cls.__module__.partition(".")[0] in (*OTHERS_CODE, "polytempo"):
            self._word("from", cls.__module__)
            return
        for name, value in sorted(vars(cls).items()):
            own = not name.startswith("__") and isinstance(value, DATA)
            if own or isinstance(value, FunctionType | staticmethod | classmethod | property):
                self._word("member", name)
                self.feed(value)
        self._all("bases", list(cls.__bases__))

    def _all(self, kind: str, parts: Iterable[object]) -> None:
        parts = list(parts)
        self._word(kind, len(parts))
        for part in parts:
            self.feed(part)

    def _array(self, content: np.ndarray, dtype: object, shape: Iterable[int]) -> None:
        self._word("array", (str(dtype), tuple(shape)))
        self.hash.update(content.data if content.size else b"")

    def _word(self, kind: str, value: object) -> None:
        self.hash.update(f"{kind}:{value!r};".encode())


def _slots(thing: object) -> dict[str, object]:
    """The attributes of an object that are not in its ``__dict__``."""
    slots = [vars(cls).get("__slots__", ()) for cls in type(thing).__mro__]
    names = {name for one in slots for name in ([one] if isinstance(one, str) else one)} - {"__dict__", "__weakref__"}
    return {name: getattr(thing, name) for name in sorted(names) if hasattr(thing, name)}


def _is_filled(cell: Any) -> bool:
    """A function that is defined inside another one may refer to what is not there yet."""
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
