"""Drift: a client's data may change at given times, or after given numbers of its own updates.

A ``swap`` exchanges labels. A ``mixture`` gives the client another distribution: with a rotation partition a new
mixture, drawn from the pools; with every other partition the rows that another drifting client began with. For that,
the drifting clients stand in a ring, ordered by their true group where there is one, and at each occurrence everyone
moves on by the size of the largest group. So the rows of any client's test set never reach training, and when the
clients drift together no row is held twice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import count, islice
from typing import Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from polytempo.core.errors import UserError
from polytempo.world.tables import FileTable, Who, chosen
from polytempo_client.streams import stream


class Drift(FileTable):
    """One change of data: what (kind, labels), who (clients), and when (at, or after and every)."""

    kind: Literal["swap", "mixture"]
    labels: tuple[tuple[int, int], ...] = ()
    """For a swap: the pairs of labels to exchange."""
    clients: Who = "all"
    at: float | tuple[float, ...] | None = None
    """Virtual seconds, one moment or several."""
    after: int | None = Field(default=None, ge=1)
    """How many updates of its own a client has done when its data change."""
    every: int | None = Field(default=None, ge=1)
    """With ``after``: the change comes again each time after so many further updates."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.at is None) == (self.after is None):
            raise ValueError("a drift needs either at (virtual seconds) or after (a client's updates)")
        if self.every is not None and self.after is None:
            raise ValueError("every repeats a drift with after; to repeat one with at, list the times: at = [100, 200]")
        if any(not 0 <= time < float("inf") for time in self.times):
            raise ValueError("the times in at must be finite and not negative")
        if (self.kind == "swap") != bool(self.labels):
            raise ValueError('a swap needs pairs of labels, for example labels = [[0, 1]]; kind "mixture" takes none')
        return self

    @property
    def times(self) -> tuple[float, ...]:
        if self.at is None:
            return ()
        return tuple(sorted(self.at)) if isinstance(self.at, tuple) else (self.at,)


class Occurrence(NamedTuple):
    """A drift that has happened to a client, for the repeat-th time (from 1)."""

    drift: Drift
    number: int
    """Which drift of the plan."""
    repeat: int


@dataclass(frozen=True, eq=False)
class DriftPlan:
    """Which drifts happen to which clients, and in what order."""

    drifts: tuple[Drift, ...]
    affected: tuple[np.ndarray, ...]
    """Per drift a mask over the clients."""
    rings: tuple[np.ndarray, ...]
    """Per drift the affected clients in the order of their ring."""
    strides: tuple[int, ...]
    """Per drift how far everyone moves along the ring at each occurrence."""

    def at_times(self) -> list[tuple[float, list[int]]]:
        """The drifts at absolute times, with the clients that they affect."""
        moments = sorted((time, number) for number, drift in enumerate(self.drifts) for time in drift.times)
        return [(time, np.flatnonzero(self.affected[number]).tolist()) for time, number in moments]

    def after_update(self, client: int, updates_done: int) -> int:
        """How many drifts happen to a client that has just done its ``updates_done``-th update."""
        return sum(
            bool(mask[client]) and updates_done in _updates(drift)
            for drift, mask in zip(self.drifts, self.affected, strict=True)
            if drift.after is not None
        )

    def history(self, client: int, generation: int) -> list[Occurrence]:
        """The first ``generation`` drifts of the client, in the order in which they happen to it."""
        mine = [number for number, mask in enumerate(self.affected) if mask[client]]
        history = list(islice(merge(*(self._moments(number) for number in mine)), generation))
        if len(history) < generation:
            raise ValueError(f"client {client} drifts {len(history)} times, so it has no generation {generation}")
        return [Occurrence(self.drifts[number], number, repeat) for _, number, repeat in history]

    def takes_over(self, client: int, occurrence: Occurrence) -> int:
        """The client whose first rows this client has after a mixture drift."""
        ring = self.rings[occurrence.number]
        position = int(np.flatnonzero(ring == client)[0])
        return int(ring[(position + occurrence.repeat * self.strides[occurrence.number]) % len(ring)])

    def _moments(self, number: int) -> Iterator[tuple[float, int, int]]:
        drift = self.drifts[number]
        moments = drift.times if drift.after is None else _updates(drift)
        return ((moment, number, repeat) for moment, repeat in zip(moments, count(1), strict=False))


def plan_drifts(
    drifts: Sequence[Drift], clients: int, classes: int, seed: int, groups: np.ndarray | None, ringed: bool
) -> DriftPlan:
    """Choose the clients of each drift. ``ringed`` says that a mixture drift moves clients along a ring."""
    affected, rings, strides = [], [], []
    for number, drift in enumerate(drifts):
        rng = stream(seed, "drift", number)
        wrong = [label for pair in drift.labels for label in pair if not 0 <= label < classes]
        if wrong:
            raise UserError(f"drift.{number}: there is no label {wrong[0]}. Labels are numbered 0 to {classes - 1}.")
        mask = chosen(drift.clients, clients, rng, f"drift.{number}")
        ring = rng.permutation(np.flatnonzero(mask))
        if drift.kind == "mixture" and ringed and len(ring) < 2:
            raise UserError(
                f"drift.{number}: {len(ring)} client cannot take over another's data. Let at least two clients drift."
            )
        affected.append(mask)
        rings.append(ring if groups is None else ring[np.argsort(groups[ring], kind="stable")])
        strides.append(1 if groups is None else int(np.unique(groups[ring], return_counts=True)[1].max()))
    _check_order(drifts, affected)
    return DriftPlan(tuple(drifts), tuple(affected), tuple(rings), tuple(strides))


def _check_order(drifts: Sequence[Drift], affected: Sequence[np.ndarray]) -> None:
    timed = [mask for drift, mask in zip(drifts, affected, strict=True) if drift.after is None]
    counted = [mask for drift, mask in zip(drifts, affected, strict=True) if drift.after is not None]
    if timed and counted:
        both = np.flatnonzero(np.any(timed, axis=0) & np.any(counted, axis=0))
        if len(both):
            raise UserError(
                f"Client {both[0]} has drifts at given times and drifts after given updates, so their order is open. "
                "Use either at or after for a client; clients = [...] says whom a drift affects."
            )


def _updates(drift: Drift) -> range:
    """The update counts after which the drift happens; a repeated one goes on without end in practice."""
    assert drift.after is not None
    if drift.every is None:
        return range(drift.after, drift.after + 1)
    return range(drift.after, 2**62, drift.every)
