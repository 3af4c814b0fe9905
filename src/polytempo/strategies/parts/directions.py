"""In which direction each client's data pull one and the same model, and whether clients fall into groups by it."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from polytempo.core.stateful import Attributes, stateful
from polytempo.strategies.parts.cosines import cosines, norm, unit_sum
from polytempo.strategies.parts.similarity import affinity
from polytempo.strategies.parts.spectral import eigengap, spectral_parts


class Grouping(NamedTuple):
    """How clients fall apart."""

    members: list[list[int]]
    eigengap: float


@stateful
class Directions(Attributes):
    """One unit vector per client, averaged over its updates: ``f_i <- (f_i + delta_i/||delta_i||) / 2``."""

    def __init__(self) -> None:
        self.of: dict[int, Tensor] = {}

    def take(self, client: int, delta: Tensor) -> None:
        new = delta / (norm(delta) or 1.0)
        self.of[client] = torch.lerp(self.of[client], new, 0.5) if client in self.of else new

    def forget(self, client: int) -> None:
        self.of.pop(client, None)

    def grouping(self, clients: Sequence[int]) -> Grouping:
        """The parts that the eigengap of the clients' cosines suggests (negative ones count as 0), and how clear it
        is."""
        graph = affinity(cosines([self.of[client] for client in clients]), "delta")
        parts, gap = eigengap(graph)
        if parts < 2:
            return Grouping([list(clients)], gap)
        return Grouping([[clients[i] for i in part] for part in spectral_parts(graph, parts)], gap)

    def common(self, clients: Sequence[int]) -> Tensor:
        """The direction of some clients together."""
        return unit_sum([self.of[client] for client in clients]).float()
