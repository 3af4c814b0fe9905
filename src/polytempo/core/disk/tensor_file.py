"""Safetensors written without copies: a header, and the tensors as they lie in memory. Writing holds no GIL, so that a
thread may do it beside others."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from polytempo_client.disk.tensor_format import header, read_parts

NAMES = {
    **{torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL"},
    **{torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"},
    **{torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16"},
}
"""The format's names of torch's types."""
TYPES = {name: dtype for dtype, name in NAMES.items()}

SYNC_EVERY = 16 << 20
"""Bytes. A large file that is synced only at its end makes everybody's next sync wait for it."""


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor where they lie."""
    return tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def pieces_of(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """What a file of these tensors holds: the header, and each tensor where it lies."""
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    described = ((name, NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in whole.items())
    return [memoryview(header(described)), *(memory_of(tensor) for tensor in whole.values())]


def read_tensors(content: bytes | bytearray) -> dict[str, Tensor]:
    """The tensors of a file that was read. ValueError or LookupError say what is wrong with it."""
    return {
        part.name: torch.frombuffer(bytearray(part.data), dtype=TYPES[part.dtype]).reshape(part.shape)
        if part.data
        else torch.empty(part.shape, dtype=TYPES[part.dtype])
        for part in read_parts(content)
    }


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A new file of these tensors."""
    with path.open("wb", buffering=0) as file:
        unsynced = 0
        for rest in pieces_of(tensors):
            while len(rest):
                written = file.write(rest[:SYNC_EVERY])
                rest, unsynced = rest[written:], unsynced + written
                if unsynced >= SYNC_EVERY:
                    os.fdatasync(file.fileno())
                    unsynced = 0
