"""Safetensors written without copies: a header, and the tensors as they lie in memory. Writing holds no GIL, so that a
thread may do it beside others."""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

ITEM_BYTES = {
    **{"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4},
    **{"F16": 2, "BF16": 2, "I16": 2, "U16": 2, "I8": 1, "U8": 1, "BOOL": 1},
}
"""By the format's names."""
_NAMES = {
    **{torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL"},
    **{torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"},
    **{torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16"},
}

Described = tuple[str, str, tuple[int, ...]]
"""A tensor's name, type and shape."""


def header(tensors: Iterable[Described], metadata: Mapping[str, str] | None = None) -> bytes:
    """The header of a file that holds these tensors one behind the other."""
    table: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    begin = 0
    for name, dtype, shape in tensors:
        end = begin + ITEM_BYTES[dtype] * prod(shape)
        table[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_tensors(path: Path, tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> None:
    """Tensors by their number."""
    whole = [tensor.detach().contiguous() for tensor in tensors]
    described = ((str(i), _NAMES[tensor.dtype], tuple(tensor.shape)) for i, tensor in enumerate(whole))
    with path.open("wb", buffering=0) as file:
        file.write(header(described, metadata))
        for tensor in whole:
            rest = tensor.view(-1).view(torch.uint8).numpy().data
            while len(rest):
                rest = rest[file.write(rest) :]
