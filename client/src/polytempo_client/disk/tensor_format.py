"""The safetensors format: a length, a JSON header, and the tensors one behind the other. It is written here so that
nothing is copied, and read here because the library is not to be had for every small device."""

import json
from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

ITEM_BYTES = {
    **{"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4},
    **{"F16": 2, "BF16": 2, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1},
}
"""By the format's names."""
LONGEST_HEADER = 100_000_000
"""Bytes, as in the library."""

Described = tuple[str, str, tuple[int, ...]]
"""A tensor's name, type and shape."""


def header(tensors: Iterable[Described]) -> bytes:
    """The header of a file that holds these tensors one behind the other."""
    table, begin = {}, 0
    for name, dtype, shape in tensors:
        end = begin + ITEM_BYTES[dtype] * prod(shape)
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class Part(NamedTuple):
    """One tensor of a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


def read_parts(content: bytes | bytearray | memoryview) -> list[Part]:
    """The tensors in the order of their data, which have to fill the file without gaps; ValueError where they do not,
    KeyError for a dtype that the format does not know."""
    whole = memoryview(content)
    length = int.from_bytes(whole[:8], "little")
    if len(whole) < 8 or length > min(len(whole) - 8, LONGEST_HEADER):
        raise ValueError("the header is longer than the file")
    described = sorted(_described(bytes(whole[8 : 8 + length])), key=lambda one: one[1])
    data, parts, end = whole[8 + length :], [], 0
    for (name, dtype, shape), (first, last) in described:
        if first != end or last - first != ITEM_BYTES[dtype] * prod(shape):
            raise ValueError(f"the data of {name!r} lie at {first} to {last}, where its shape or another tensor ends")
        parts.append(Part(name, dtype, shape, data[first:last]))
        end = last
    if end != len(data):
        raise ValueError(f"{len(data)} bytes of data are not the {end} that the header describes")
    return parts


def _described(text: bytes) -> list[tuple[Described, tuple[int, int]]]:
    """What a header says of each tensor, and where its data begin and end."""
    try:
        table = json.loads(text, object_pairs_hook=_unrepeated)
    except RecursionError:
        raise ValueError("the header is nested too deeply") from None
    if type(table) is not dict or not text.startswith(b"{"):
        raise ValueError("the header is no table")
    table.pop("__metadata__", None)
    found = []
    for name, about in table.items():
        if type(about) is not dict or about.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name!r} needs dtype, shape and data_offsets")
        dtype, shape, offsets = about["dtype"], about["shape"], about["data_offsets"]
        if type(dtype) is not str or not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
            raise ValueError(f"{name!r} has a dtype, shape or data_offsets of another form")
        found.append(((name, dtype, tuple(shape)), (offsets[0], offsets[1])))
    return found


def _unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("the header names a tensor twice")
    return table


def _are_sizes(given: object) -> bool:
    return type(given) is list and all(type(size) is int and size >= 0 for size in given)
