"""Safetensors written without copies: a header, and the tensors as they lie in memory. Writing holds no GIL, so that a
thread may do it beside others."""

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from polytempo_client.disk.tensor_format import header

NAMES = {
    **{torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.bool: "BOOL"},
    **{torch.int64: "I64", torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8"},
    **{torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16"},
}
"""The format's names of torch's types."""

SYNC_EVERY = 16 << 20
"""Bytes. A large file that is synced only at its end makes everybody's next sync wait for it."""


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor where they lie."""
    return tensor.view(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A new file of these tensors."""
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    described = ((name, NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in whole.items())
    with path.open("wb", buffering=0) as file:
        unsynced = 0
        memory = (memory_of(tensor) for tensor in whole.values())
        for rest in (memoryview(header(described)), *memory):
            while len(rest):
                written = file.write(rest[:SYNC_EVERY])
                rest, unsynced = rest[written:], unsynced + written
                if unsynced >= SYNC_EVERY:
                    os.fdatasync(file.fileno())
                    unsynced = 0
