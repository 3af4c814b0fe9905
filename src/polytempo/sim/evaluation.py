"""How well everybody is served now. Clients that share a model are scored in one pass."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from polytempo.learn.scoring import CHUNK, Scorer, mean_per_part
from polytempo.sim.lookahead import Lookahead, in_parts
from polytempo.world.federation import ClientData

Served = tuple[Tensor, list[ClientData]]
"""A model and the data of the clients that get it."""


def score_clients(
    clients: Iterable[int],
    model_for: Callable[[int], Tensor],
    data_of: Callable[[int], ClientData],
    x: Tensor,
    scorer: Scorer,
    pool: Lookahead,
) -> np.ndarray:
    """The local test score of each client with the model it is served."""
    clients = list(clients)
    shared: dict[int, tuple[Tensor, list[int]]] = {}
    for place, client in enumerate(clients):
        weights = model_for(client)
        shared.setdefault(id(weights), (weights, []))[1].append(place)
    units = [
        (weights, places[i:j]) for weights, places in shared.values() for i, j in _cuts(places, clients, data_of)
    ]
    scores = np.empty(len(clients))

    def score(part: list[tuple[Tensor, list[int]]]) -> list[tuple[list[int], np.ndarray]]:
        found = []
        for weights, places in part:
            data = [data_of(clients[place]) for place in places]
            rows = np.concatenate([d.test for d in data])
            y = torch.from_numpy(np.concatenate([d.y[d.test] for d in data]))
            values = scorer.metric(weights, x, y, rows)
            found.append((places, mean_per_part(values, [len(d.test) for d in data])))
        return found

    parts = in_parts(units, 16)
    for found in pool.evaluate([lambda part=part: score(part) for part in parts]):  # type: ignore[misc]
        for places, means in found:
            scores[places] = means
    return scores


def _cuts(
    places: list[int], clients: list[int], data_of: Callable[[int], ClientData]
) -> Iterable[tuple[int, int]]:
    """Cut the clients of one model into runs of about one forward pass each, so that threads can share them."""
    begin, rows = 0, 0
    for i, place in enumerate(places):
        rows += len(data_of(clients[place]).test)
        if rows >= CHUNK:
            yield begin, i + 1
            begin, rows = i + 1, 0
    if begin < len(places):
        yield begin, len(places)
