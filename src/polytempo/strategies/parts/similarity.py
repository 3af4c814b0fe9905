"""How alike clients are, pair by pair, as far as anyone has compared them."""

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np

from polytempo.core.stateful import Attributes, stateful

LARGEST = 1e37
"""Weight of a comparison."""
CONNECTED = 1e-6
"""The least weight of a pair in a graph: the solvers of spectral clustering expect that it does not fall apart."""


@stateful
class Similarity(Attributes):
    """A symmetric matrix over the numbers of all clients that ever joined, ones on its diagonal, NaN where two were
    never compared. An entry is the mean of a pair's cosines, each weighted by the lengths of what was compared: of
    deltas, how far the two had moved. It takes eight bytes for every entry."""

    def __init__(self) -> None:
        self.values = np.ones((0, 0), np.float32)
        self.weights = np.zeros((0, 0), np.float32)

    def make_room(self, clients: int) -> None:
        """Grow to at least so many clients, by half at least, so that growing stays cheap."""
        size = len(self.values)
        if clients > size:
            values = np.full((max(clients, size + size // 2),) * 2, np.nan, np.float32)
            np.fill_diagonal(values, 1)
            weights = np.zeros_like(values)
            values[:size, :size], weights[:size, :size] = self.values, self.weights
            self.values, self.weights = values, weights

    def compare(
        self, client: int, others: Sequence[int], cosines: Sequence[float], weights: Sequence[float], memory: float
    ) -> None:
        """``W_ij <- memory W_ij + w``, ``A_ij <- A_ij + (cos - A_ij) w / W_ij`` for each other j: with the memory 0 the
        last cosine alone. A weight that float32 cannot hold says nothing of how alike two are, and is left out."""
        there = np.asarray(weights) <= LARGEST
        with_, cosine = np.asarray(others, np.int64)[there], np.asarray(cosines, np.float64)[there]
        new, known = np.asarray(weights, np.float64)[there], np.nan_to_num(self.values[client, with_], nan=0.0)
        total = np.minimum(memory * self.weights[client, with_] + new, LARGEST)
        share = np.divide(new, total, out=np.ones_like(new), where=total > 0)
        self.values[client, with_] = self.values[with_, client] = (1 - share) * known + share * cosine
        self.weights[client, with_] = self.weights[with_, client] = total

    @classmethod
    def load_state(cls, saved: dict[str, object]) -> Self:
        """Also from before comparisons had weights."""
        made = super().load_state(saved)
        if "weights" not in saved:
            made.weights = np.zeros_like(made.values)
        return made

    def forget(self, client: int) -> None:
        self.values[client] = self.values[:, client] = np.nan
        self.values[client, client] = 1
        self.weights[client] = self.weights[:, client] = 0

    def compared(self, clients: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Which of these pairs have been compared."""
        return ~np.isnan(self.values[clients, others])

    def block(self, clients: Sequence[int]) -> np.ndarray:
        """The part of the matrix that is about these clients."""
        return self.values[np.ix_(clients, clients)].astype(np.float64)


def coverage(block: np.ndarray) -> float:
    """The share of a block's pairs that have been compared."""
    pairs = block.size - len(block)
    return 1 - np.count_nonzero(np.isnan(block)) / pairs if pairs else 1.0


def affinity(block: np.ndarray, source: Literal["delta", "weights"]) -> np.ndarray:
    """Weights of a graph, 0 to 1, from a block of cosines. Of deltas, negative cosines count as 0; cosines of weights,
    which are all close to 1, are stretched from the lowest to the highest of the block. Missing pairs get the mean."""
    pairs = ~np.eye(len(block), dtype=bool)
    known = pairs & ~np.isnan(block)
    if not known.any():
        return np.ones_like(block)
    if source == "delta":
        graph = np.clip(block, 0, 1)
    else:
        lowest, highest = block[known].min(), block[known].max()
        graph = (block - lowest) / (highest - lowest) if highest > lowest else np.ones_like(block)
    graph[pairs & ~known] = graph[known].mean()
    np.maximum(graph, CONNECTED, out=graph)
    np.fill_diagonal(graph, 1)
    return graph
