"""The bodies of messages: named tensors as safetensors.

A body that we write ourselves holds its tensors in the model's own order, so its data are the flat vectors as they lie
in memory; a body whose header is byte for byte the one we would have written is read without a copy."""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np

from polytempo_client.disk.tensor_format import ITEM_BYTES, header, read_parts
from polytempo_client.errors import WireError
from polytempo_client.model.schema import Schema
from polytempo_client.protocol.framing import Buffer


class Entry(NamedTuple):
    """One tensor of a body."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


_DTYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
    "F16": np.dtype(np.float16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "U32": np.dtype(np.uint32),
    "U16": np.dtype(np.uint16),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@lru_cache(maxsize=64)
def entries_of(schema: Schema, prefix: str = "", dtype: str = "F32") -> tuple[Entry, ...]:
    """The tensors of one vector of the model's shape."""
    return tuple(Entry(prefix + name, dtype, shape) for name, shape in zip(schema.names, schema.shapes, strict=True))


def entry_of(name: str, array: np.ndarray) -> Entry:
    if array.dtype not in _NAMES:
        raise WireError(f"{name} has dtype {array.dtype}, which cannot be sent; expected one of {', '.join(_DTYPES)}")
    return Entry(name, _NAMES[array.dtype], array.shape)


@lru_cache(maxsize=64)
def body_header(entries: tuple[Entry, ...]) -> bytes:
    """The safetensors header of a body that holds these tensors in this order."""
    return header(entries)


def make_body(entries: tuple[Entry, ...], data: Sequence[np.ndarray]) -> list[Buffer]:
    """A safetensors body in pieces: the header, and the data, which must lie in the order of the entries."""
    return [body_header(entries), *(memory_of(part) for part in data)]


def memory_of(array: np.ndarray) -> memoryview:
    """Its bytes, where they lie if they lie in a row."""
    return np.ascontiguousarray(array).data.cast("B") if array.size else memoryview(b"")


def as_written(body: bytearray, entries: tuple[Entry, ...]) -> memoryview | None:
    """The data of a body that holds exactly these tensors in this order, without a copy; None if it is another one."""
    expected = body_header(entries)
    size = len(expected) + sum(entry.nbytes for entry in entries)
    if len(body) != size or not body.startswith(expected):
        return None
    return memoryview(body)[len(expected) :]


def read_body(body: Buffer) -> dict[str, np.ndarray]:
    """Any safetensors body, by name; it may come from anybody."""
    if not body:
        return {}
    try:
        return {
            part.name: np.frombuffer(bytearray(part.data), _DTYPES[part.dtype]).reshape(part.shape)
            for part in read_parts(body)
        }
    except KeyError as error:
        raise WireError(f"a tensor has dtype {error.args[0]}; expected one of {', '.join(_DTYPES)}") from None
    except (ValueError, OverflowError) as error:  # numpy has its own bounds for shapes
        raise WireError(f"the tensors cannot be read as safetensors: {error}") from None
