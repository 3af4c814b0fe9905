"""One client's whole local training as data: what an engine is given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from torch import Tensor

from polytempo.core.orders import Objective, Work


@dataclass(frozen=True, slots=True)
class Refresh:
    """Before step ``at_step`` the weights are replaced (or, with ``rebase``, replaced and the client's own progress
    since its start or last refresh added); the optimiser's state stays. From then on the client's delta counts from
    these weights, and so does an objective without an anchor of its own: its anchor is now ``weights``."""

    at_step: int
    weights: Tensor
    rebase: bool = False


Listen = Callable[[int], Sequence[Refresh] | None]
"""Called in the training's own thread with the number of steps done: the refreshes that arrived since the last call, to
be applied now whatever their ``at_step``, or None: stop now. It is called again until it has nothing more to say, so
that a refresh and then a stop can both take effect before the same step."""


@dataclass(frozen=True, slots=True)
class Batches:
    """The rows of every step: step k uses ``rows[offsets[k]:offsets[k+1]]``. Batches may have different sizes."""

    rows: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def first(self, steps: int) -> "Batches":
        """Those of the first steps."""
        return Batches(self.rows[: self.offsets[steps]], self.offsets[: steps + 1])

    def after(self, steps: int) -> "Batches":
        """Those of the steps behind the first ones."""
        begin = self.offsets[steps]
        return Batches(self.rows[begin:], self.offsets[steps:] - begin)

    def only(self, step: int) -> "Batches":
        """That of one step."""
        begin, end = self.offsets[step : step + 2]
        return Batches(self.rows[begin:end], np.array([0, end - begin], np.int64))


@dataclass(frozen=True, slots=True)
class Job:
    """Train ``len(batches)`` steps from ``start``. The same job always gives the same bits."""

    start: Tensor
    x: Tensor
    """Features of the whole data set; ``batches`` picks rows."""
    y: Tensor
    """Labels of the whole data set, int64."""
    batches: Batches
    work: Work
    lr: float
    """The work's learning rate, its schedule resolved."""
    objective: Objective = field(default_factory=Objective)
    """Its anchor, if it has one, stays through refreshes; otherwise the anchor is ``start`` or the last refresh."""
    mask: Tensor | None = None
    """Boolean, as long as the vector: coordinates outside keep their start value."""
    refreshes: tuple[Refresh, ...] = ()
    """Known in advance, in order of ``at_step``."""
    seed: int = 0
    """For what a model draws while training (dropout)."""
    kept: Tensor | None = None
    """Boolean, as long as the vector: coordinates that refreshes leave as they are."""
    listen: Listen | None = None
    """Instead of ``refreshes``: what arrives while the engine computes. Not called after the last step."""

    def __post_init__(self) -> None:
        if self.refreshes and self.listen is not None:
            raise ValueError("A job's refreshes are either known in advance or listened for, not both.")

    def due(self, done: int) -> tuple[list[Refresh], bool]:
        """The refreshes to apply when so many steps are done, in order, and whether another step follows."""
        if done == len(self.batches):
            return [refresh for refresh in self.refreshes if refresh.at_step >= done], False
        due = [refresh for refresh in self.refreshes if refresh.at_step == done]
        while self.listen is not None:
            arrived = self.listen(done)
            if arrived is None:
                return due, False
            if not arrived:
                break
            due.extend(replace(refresh, at_step=done) for refresh in arrived)
        return due, True


class Engine(Protocol):
    """Trains and runs a model. It may be called from several threads at once and holds no lock while it computes."""

    def train(self, job: Job) -> Tensor:
        """The trained flat vector, a new one."""

    def outputs(self, weights: Tensor, x: Tensor, rows: np.ndarray | None = None) -> Tensor:
        """The model's outputs for these rows, or for all. A sample's depend on nothing beside it."""


def make_batches(
    rows: np.ndarray, batch_size: int, steps: int, rng: np.random.Generator, singles: bool = True
) -> Batches:
    """Batches of ``steps`` steps over the client's rows: a new permutation each epoch, the last batch of an epoch as
    large as what is left. Without ``singles``, a last batch of one gets a second sample from the batch before it."""
    per_epoch = -(-len(rows) // batch_size)
    epochs = -(-steps // per_epoch)
    order = np.concatenate([rng.permutation(rows) for _ in range(epochs)]) if epochs else rows[:0]
    within = np.minimum(np.arange(1, per_epoch + 1) * batch_size, len(rows))
    if not singles and per_epoch > 1 and batch_size > 2 and len(rows) % batch_size == 1:
        within[-2] -= 1
    ends = (np.arange(epochs)[:, None] * len(rows) + within).reshape(-1)[:steps]
    offsets = np.concatenate([[0], ends]).astype(np.int64)
    return Batches(np.ascontiguousarray(order[: offsets[-1]], dtype=np.int64), offsets)
