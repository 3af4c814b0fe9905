"""The models that a strategy serves, as named tensors."""

from collections.abc import Sequence

import torch
from torch import Tensor

from polytempo.core.model.state_dicts import named_models
from polytempo.strategies.base.strategy import Strategy


def served_models(strategy: Strategy, clients: Sequence[int]) -> dict[str, Tensor]:
    """Every distinct model that these clients would be served now, its tensors named ``NUMBER.NAME``; ``clients``, and
    ``client_model``: which number each of them gets; and ``collaboration``, where there is a graph: who learns from
    whom."""
    served = [strategy.model_for(client) for client in clients]
    distinct = {id(weights): weights for weights in served}
    numbers = {key: number for number, key in enumerate(distinct)}
    views = strategy.setting.schema.views
    models = {numbers[key]: views(weights.clone()) for key, weights in distinct.items()}
    tensors = named_models(models, {client: numbers[id(w)] for client, w in zip(clients, served, strict=True)})
    graph = strategy.collaboration()
    return tensors | ({} if graph is None else {"collaboration": torch.from_numpy(graph)})
