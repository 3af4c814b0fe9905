"""The federation: the clients with their data."""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np

from polytempo.world.dataset import Dataset
from polytempo.world.drift import DriftPlan, Occurrence

NO_ROWS = np.empty(0, np.int64)


class ClientData(NamedTuple):
    """One client's data at one moment: rows of the data set, and the labels as this client sees them."""

    train: np.ndarray
    test: np.ndarray
    y: np.ndarray
    """Labels of the whole data set (indexed by row), swapped where a drift swapped them for this client."""
    validation: np.ndarray = NO_ROWS
    """Rows to choose settings by, which the client does not train on."""


class Draw(NamedTuple):
    """Rows drawn from pools, and the mixture of clusters that they were drawn with."""

    train: np.ndarray
    test: np.ndarray
    mixture: np.ndarray


class Cluster(NamedTuple):
    """What the world sets aside of one cluster, rows of the data set: the server's proxy set, which no client has, and
    samples to test the cluster's model on, which nobody trains on."""

    proxy: np.ndarray
    test: np.ndarray


class Pools(Protocol):
    """Where a partition draws a client's rows anew after a mixture drift."""

    def draw(self, client: int, generation: int) -> Draw: ...


@dataclass(frozen=True, eq=False)
class Federation:
    """Who has which rows. Client i trains on ``train_idx[train_off[i]:train_off[i+1]]`` and is tested on
    ``test_idx[test_off[i]:test_off[i+1]]``. A client's generation counts the drifts that have happened to it: its data
    are a function of (seed, client, generation), and whoever drives the clock keeps the count."""

    dataset: Dataset
    train_idx: np.ndarray
    train_off: np.ndarray
    test_idx: np.ndarray
    test_off: np.ndarray
    groups: np.ndarray | None = None
    """The true group of each client, where the partition planted some."""
    mixtures: np.ndarray | None = None
    """The shares of the clusters in each client's data (clients x clusters), where the partition mixes some."""
    pools: Pools | None = None
    drifts: DriftPlan | None = None
    clusters: tuple[Cluster, ...] = ()
    """Where proxy sets were asked for."""
    validation_idx: np.ndarray = field(default_factory=lambda: NO_ROWS)
    """Validation rows like those of train and test, where they were asked for."""
    validation_off: np.ndarray | None = None
    _swapped: dict[tuple[int, ...], np.ndarray] = field(default_factory=dict, repr=False)
    """The labels of the data set under each relabelling that some client has."""

    def __len__(self) -> int:
        return len(self.train_off) - 1

    def client(self, client: int, generation: int = 0) -> ClientData:
        """The client's data after its first ``generation`` drifts."""
        history = self._history(client, generation)
        train, test = self._rows(client, history)
        return ClientData(train, test, self._labels(history), self._validation(client, history))

    def samples(self, client: int, generation: int = 0) -> int:
        """How many samples the client trains on."""
        if generation == 0:
            return int(self.train_off[client + 1] - self.train_off[client])
        return len(self._rows(client, self._history(client, generation))[0])

    def group(self, client: int, generation: int = 0) -> int | None:
        """The true group of the client after its first drifts: with a mixture, the cluster with the largest share."""
        if self.groups is None:
            return None
        mixture = self.mixture(client, generation)
        if mixture is not None:
            return int(mixture.argmax())
        return int(self.groups[self._holder(client, self._history(client, generation))])

    def mixture(self, client: int, generation: int = 0) -> np.ndarray | None:
        """The shares of the clusters in the client's data after its first drifts."""
        if self.mixtures is None or self.pools is None:
            return None
        redrawn = _last_mixture(self._history(client, generation))
        return self.pools.draw(client, redrawn).mixture if redrawn else self.mixtures[client]

    def drift_times(self) -> list[tuple[float, list[int]]]:
        """The drifts at absolute times, sorted, each with the clients whose generation it raises by one."""
        return self.drifts.at_times() if self.drifts else []

    def drifts_after_update(self, client: int, updates_done: int) -> int:
        """By how much the client's generation grows right after its ``updates_done``-th update."""
        return self.drifts.after_update(client, updates_done) if self.drifts else 0

    def _history(self, client: int, generation: int) -> list[Occurrence]:
        if generation == 0:
            return []
        if self.drifts is None:
            raise ValueError(f"no data drift here, so client {client} has no generation {generation}")
        return self.drifts.history(client, generation)

    def _rows(self, client: int, history: list[Occurrence]) -> tuple[np.ndarray, np.ndarray]:
        redrawn = _last_mixture(history)
        if self.pools is not None and redrawn:
            draw = self.pools.draw(client, redrawn)
            return draw.train, draw.test
        holder = self._holder(client, history)
        return (
            self.train_idx[self.train_off[holder] : self.train_off[holder + 1]],
            self.test_idx[self.test_off[holder] : self.test_off[holder + 1]],
        )

    def _validation(self, client: int, history: list[Occurrence]) -> np.ndarray:
        if self.validation_off is None:
            return NO_ROWS
        holder = self._holder(client, history)
        return self.validation_idx[self.validation_off[holder] : self.validation_off[holder + 1]]

    def _holder(self, client: int, history: list[Occurrence]) -> int:
        """Whose first rows the client has now."""
        last = _last_mixture(history)
        if last == 0 or self.drifts is None or self.pools is not None:
            return client
        return self.drifts.takes_over(client, history[last - 1])

    def _labels(self, history: list[Occurrence]) -> np.ndarray:
        pairs = [pair for occurrence in history for pair in occurrence.drift.labels]
        if not pairs:
            return self.dataset.y
        names = np.arange(self.dataset.classes)
        for one, other in pairs:
            was_one, was_other = names == one, names == other
            names[was_one], names[was_other] = other, one
        key = tuple(names.tolist())
        if key not in self._swapped:
            self._swapped[key] = names.astype(self.dataset.y.dtype)[self.dataset.y]
        return self._swapped[key]


def _last_mixture(history: list[Occurrence]) -> int:
    """The generation in which the client last got other rows; 0 if it never did."""
    if not history:  # asked for at every event
        return 0
    return max((g for g, occurrence in enumerate(history, 1) if occurrence.drift.kind == "mixture"), default=0)
