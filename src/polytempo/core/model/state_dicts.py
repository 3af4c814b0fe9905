"""Models as plain PyTorch reads them: tensors by name."""

from collections.abc import Mapping

import torch
from torch import Tensor


def with_batch_counts(named: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model under their names. Torch's normalisation layers also count batches, which no client hands
    in: the count begins at 0, so that ``load_state_dict`` misses nothing."""
    layers = [name.removesuffix("running_mean") for name in named if name.endswith("running_mean")]
    counts = {f"{layer}num_batches_tracked": torch.tensor(0) for layer in layers if f"{layer}running_var" in named}
    return {**named, **counts}


def named_models(models: Mapping[int, Mapping[str, Tensor]], numbers: Mapping[int, int]) -> dict[str, Tensor]:
    """Models of clients as one set of tensors: ``NUMBER.NAME`` are those of model NUMBER, ``clients`` the clients, and
    ``client_model`` which number each of them has."""
    tensors = {f"{number}.{name}": tensor for number, named in models.items() for name, tensor in named.items()}
    whose = {"clients": torch.tensor([*numbers]), "client_model": torch.tensor([*numbers.values()])}
    return tensors | {name: values.to(torch.int64) for name, values in whose.items()}
