"""The models that a strategy serves, as named tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from polytempo.strategies.base.strategy import Strategy


def served_models(strategy: Strategy, clients: Sequence[int]) -> dict[str, Tensor]:
    """Every distinct model that these clients would be served now, its tensors named ``NUMBER.NAME``; ``clients``, and
    ``client_model``: which number each of them gets; and ``collaboration``, where there is a graph: who learns from
    whom."""
    served = [strategy.model_for(client) for client in clients]
    distinct = {id(weights): weights for weights in served}
    numbers = {key: number for number, key in enumerate(distinct)}
    tensors = {
        f"{numbers[key]}.{name}": tensor.clone()
        for key, weights in distinct.items()
        for name, tensor in strategy.setting.schema.views(weights).items()
    }
    whose = {"clients": torch.tensor(list(clients)), "client_model": torch.tensor([numbers[id(w)] for w in served])}
    graph = strategy.collaboration()
    return tensors | whose | ({} if graph is None else {"collaboration": torch.from_numpy(graph)})
