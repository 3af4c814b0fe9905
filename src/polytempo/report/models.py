"""The models of a run as modules, and as files that plain PyTorch loads."""

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from polytempo.core.disk.files import same_file, write_whole
from polytempo.core.disk.new_directory import new_directory
from polytempo.core.disk.tensor_file import write_tensors
from polytempo.core.errors import UserError
from polytempo.core.given import described
from polytempo.core.model.state_dicts import with_batch_counts
from polytempo.sim.kept_models import KeptModels
from polytempo_client.disk.files import write_bytes

INDEX = "index.json"


def client_model(
    kept: KeptModels, client: int, which: str = "used", module: nn.Module | None = None
) -> nn.Module | dict[str, Tensor]:
    """The model of a client, loaded into the given module or into a new one of the run's own kind; as a state dict
    where none can be built."""
    numbers = kept.clients(which)
    if client not in numbers:
        known = f"those from 0 to {max(numbers)} that ever trained" if which == "own" else f"0 to {max(numbers)}"
        raise UserError(f"Client {client!r} has no {which} model. Expected the number of a client: {known}.")
    tensors = kept.tensors(which, numbers[client])
    if module is None and kept.build is None:
        return with_batch_counts(tensors)
    made = kept.build() if module is None and kept.build is not None else module
    if not isinstance(made, nn.Module):
        raise UserError(f"module is {described(made)}. Expected an nn.Module, whose weights are replaced.")
    return loaded(made, tensors)


def loaded(module: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The module with these tensors in place, in evaluation mode. What is not among them stays: frozen weights, and how
    many batches a normalisation layer has seen."""
    places = dict(module.named_parameters()) | dict(module.named_buffers())
    for name, tensor in tensors.items():
        if name not in places or places[name].shape != tensor.shape:
            there = f"of shape {tuple(places[name].shape)}" if name in places else "missing"
            raise UserError(
                f"The module does not fit the run's models: expected {name} of shape {tuple(tensor.shape)}, it is "
                f"{there}."
            )
        with torch.no_grad():
            places[name].copy_(tensor)
    return module.eval()


def export_models(kept: KeptModels, out: Path, which: str, about: Mapping[str, Any]) -> None:
    """Write ``client-N.safetensors`` for each client that has such a model, and ``index.json``. ``out`` appears when
    all of them are there."""
    numbers = kept.clients(which)
    written: dict[int, Path] = {}
    with new_directory(out) as making:
        for client, number in numbers.items():
            path = making / f"client-{client}.safetensors"
            if number in written:
                same_file(written[number], path)
                continue
            state = _state_dict(kept, which, number)
            write_whole(path, lambda temporary, state=state: write_tensors(temporary, state))  # type: ignore[misc]
            written[number] = path
        models = [{"client": client, "file": f"client-{client}.safetensors"} for client in numbers]
        index = {"polytempo": metadata.version("polytempo"), **about, "which": which, "models": models}
        write_bytes(making / INDEX, json.dumps(index, indent=1).encode() + b"\n")


def _state_dict(kept: KeptModels, which: str, number: int) -> dict[str, Tensor]:
    tensors = kept.tensors(which, number)
    return with_batch_counts(tensors) if kept.build is None else loaded(kept.build(), tensors).state_dict()
