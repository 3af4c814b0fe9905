"""PORT, written from Su and Li (2022) and from what the authors' code does, in its own numbering: a round r begins with
the model that round r - 1 has made, and an update has the staleness r less the round in which it was asked for."""

import numpy as np


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / lengths) if lengths else 0.0


class Server:
    def __init__(self, initial: np.ndarray, fewest: int, staleness: float, similarity: float, bound: int, form: str):
        self.fewest, self.bound, self.form = fewest, bound, form
        self.staleness_weight, self.similarity_weight = staleness, similarity
        self.round = 1
        self.made = {0: initial}
        """By round; 0 has made the initial model."""
        self.asked: dict[int, int] = {}
        self.updates: list[tuple[int, np.ndarray, int]] = []

    @property
    def model(self) -> np.ndarray:
        return self.made[self.round - 1]

    def sent(self, client: int) -> None:
        self.asked[client] = self.round

    def received(self, client: int, delta: np.ndarray, samples: int, steps: int) -> None:
        self.updates.append((samples, delta, self.round - self.asked.pop(client)))
        if len(self.updates) < self.fewest:
            return
        raw = [self.raw_weight(*update, self.similarity(*update[1:])) for update in self.updates]
        step = sum(weight / sum(raw) * delta for weight, (_, delta, _) in zip(raw, self.updates, strict=True))
        self.made[self.round] = self.model + step
        self.round += 1
        self.updates = []

    def raw_weight(self, samples: int, delta: np.ndarray, staleness: int, similarity: float) -> float:
        fresh = self.bound / (staleness + self.bound)
        return samples * (self.staleness_weight * fresh + self.similarity_weight * (similarity + 1) / 2)

    def similarity(self, delta: np.ndarray, staleness: int) -> float:
        if self.form == "plato" and (staleness <= 1 or self.round - 2 < 1):  # it keeps what rounds 1 and later made
            return 1.0
        if self.round - 2 < 0:
            return 0.0  # there is no last step
        return cosine(self.model - self.made[self.round - 2], delta)
