"""Frozen parts of a model: parameters that ask for no gradient, and modules without a parameter that does. Each side
loads them from the user's own factory. They do not train, and they are not part of the vector that travels; their
fingerprint says whether two sides have the same."""

import copy
import hashlib

import torch
from torch import Tensor, nn


def frozen_parts(module: nn.Module) -> list[nn.Module]:
    """The modules within that have parameters or buffers, but no parameter that trains, and what they hold. There are
    none in a model whose parameters all train."""
    if all(parameter.requires_grad for parameter in module.parameters()):
        return []
    found: list[nn.Module] = []

    def look(part: nn.Module, around: bool) -> None:
        tensors = [*part.parameters(), *part.buffers()]
        frozen = not any(parameter.requires_grad for parameter in part.parameters()) if tensors else around
        if frozen:
            found.append(part)
        for child in part.children():
            look(child, frozen)

    look(module, False)
    return found


def frozen_tensors(module: nn.Module) -> dict[str, Tensor]:
    """By name: the parameters that do not train, and the buffers of frozen parts."""
    held = {id(buffer) for part in frozen_parts(module) for buffer in part.buffers()}
    parameters = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    return parameters | {name: b for name, b in module.named_buffers() if id(b) in held}


def fingerprint_of(tensors: dict[str, Tensor]) -> str:
    """Equal for the same names, types, shapes and bits, in whatever order; empty for no tensors."""
    if not tensors:
        return ""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu()
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        found.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().data)
    return found.hexdigest()


def copy_of(module: nn.Module) -> nn.Module:
    """A copy that trains on its own and shares the frozen tensors, which nobody writes to."""
    return copy.deepcopy(module, {id(tensor): tensor for tensor in frozen_tensors(module).values()})


def set_training(module: nn.Module) -> nn.Module:
    """Put a module into training mode, and its frozen parts into that of evaluation."""
    module.train()
    for part in frozen_parts(module):
        part.eval()
    return module
