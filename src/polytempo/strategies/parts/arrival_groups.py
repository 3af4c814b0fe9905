"""Arrival groups: clients train as many steps as it takes to arrive together. The base of methods that let Compass
plan; what a group's updates do to the model is left to them, as in synchronous rounds."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.orders import Due, Order, Orders, SetTimer, Train
from polytempo.core.stateful import stateful
from polytempo.strategies.base.strategy import Setting, Strategy, parameters
from polytempo.strategies.parts.compass import ArrivalGroup, Compass

MOST = 100
"""Q_max where the run's local work is counted in epochs: the paper's with 20 clients."""


@stateful
@dataclass(frozen=True, slots=True)
class Arrival:
    """An update, and what it counts: its weight when it came."""

    update: Update
    weight: float


@parameters
class ArrivalGroups(Strategy, ABC):
    """A strategy whose clients arrive in groups (FedCompass, Algorithms 1 and 3). A client's first update counts at
    once and shows its speed. From then on its steps are chosen so that it arrives with others; the last of a group to
    arrive, or the group's latest time, makes the server aggregate. Who comes later is given new work at once, and its
    update counts in the next aggregation, whichever group that is of.

    A method says in ``weight`` what an update counts when it comes, and in ``aggregate`` what to make of a group."""

    q_max: int | None = Field(None, ge=1, description="Q_max, the most local steps; unset: the run's --steps, else 100")
    q_min: int | None = Field(None, ge=1, description="Q_min, the fewest local steps; unset: a fifth of Q_max")
    latest_factor: float = Field(
        1.2, gt=1, description="lambda: a group waits for this many times the time until its expected arrival"
    )

    def begin(self, setting: Setting) -> None:
        most = self.q_max or setting.work.steps or MOST
        fewest = self.q_min or max(most // 5, 1)
        if fewest > most:
            raise UserError(f"q_min is {fewest}, more than q_max ({most}). Lower it, or set both.")
        self.compass = Compass(fewest, most, self.latest_factor)
        self.gathered: dict[int, list[Arrival]] = {}
        """What the members of each open group have handed in."""
        self.late: list[Arrival] = []
        """What came after its group was closed: the paper's general buffer."""
        self.free: dict[int, None] = {}
        """Clients that have said ready and were given nothing yet."""
        self.picked: dict[int, Due | None] = {}
        """Clients with an assignment that have not said ready yet: the last of a group to arrive is assigned with the
        others, by its speed, before it can say so."""
        super().begin(setting)

    @abstractmethod
    def weight(self, update: Update) -> float:
        """What an update counts that has just come."""

    @abstractmethod
    def aggregate(self, arrivals: Sequence[Arrival], now: float) -> None:
        """Make the next model from what a group, and those who were late for theirs, have handed in."""

    def count_first(self, arrival: Arrival, now: float) -> None:
        """A client's first update, which counts alone and at once."""
        self.aggregate([arrival], now)

    def resolved(self) -> dict[str, Any]:
        return {"q_min": self.compass.fewest, "q_max": self.compass.most}

    def ready(self, client: int, now: float) -> Orders:
        self.free[client] = None
        if client not in self.compass.planned:
            self.participation.rest(client)
        return self._go_on(now)

    def updated(self, update: Update, now: float) -> Iterator[Order]:
        client = update.client
        arrival, first = Arrival(update, self.weight(update)), client not in self.compass.speed
        group = self.compass.group_of(client)
        if group is not None and now > group.latest:
            yield from self._close(group, now)  # its timer is due, but has not been told
        group = self.compass.arrive(client, now, update.steps)
        if group is not None:
            self.gathered.setdefault(group.number, []).append(arrival)
            if not group.waiting:
                yield from self._close(group, now)
            return
        if first:
            self.count_first(arrival, now)
        else:
            self.late.append(arrival)
        self.participation.rest(client)
        yield from self._go_on(now)

    def fired(self, key: str, now: float) -> Orders:
        group = self.compass.groups.get(int(key))
        return None if group is None else self._close(group, now)

    def left(self, client: int, now: float) -> Orders:
        self.participation.leave(client)
        self.free.pop(client, None)
        self.picked.pop(client, None)
        group = self.compass.leave(client)
        return self._go_on(now) if group is None or group.waiting else self._close(group, now)

    def forget(self, client: int) -> None:
        self.gathered = {number: _of_others(client, arrivals) for number, arrivals in self.gathered.items()}
        self.late = _of_others(client, self.late)
        self.compass.speed.pop(client, None)
        super().forget(client)

    def _close(self, group: ArrivalGroup, now: float) -> Iterator[Order]:
        """GROUPAGGREGATE. A group for which nobody came changes no model, unless others were late for theirs."""
        members = self.compass.close(group.number)
        arrivals = [*self.gathered.pop(group.number, ()), *self.late]
        self.late = []
        if arrivals:  # by client: who of two that come together is first may hang on rounding, sums of floats must not
            self.aggregate(sorted(arrivals, key=lambda arrival: arrival.update.client), now)
        for client in members:
            self.participation.rest(client)
        yield from self._go_on(now)

    def _go_on(self, now: float) -> Iterator[Order]:
        """Assign work to clients whose turn it is, the fastest first, and order it from those who are ready."""
        for client in self.compass.fastest_first(self.participation.fill()):
            made = self.compass.assign(client, now)
            if made is not None:
                yield SetTimer(made.latest, str(made.number))
            group = self.compass.group_of(client)
            self.picked[client] = None if group is None else Due(group.number, group.expected, group.latest)
        for client in [client for client in self.picked if client in self.free]:
            del self.free[client]
            yield self._planned(self.order_for(client, now), self.picked.pop(client))

    def _planned(self, order: Train, due: Due | None) -> Train:
        return replace(order, work=replace(order.work, steps=self.compass.planned[order.client].steps), due=due)


def _of_others(client: int, arrivals: Sequence[Arrival]) -> list[Arrival]:
    return [arrival for arrival in arrivals if arrival.update.client != client]


def weighted_sum(arrivals: Sequence[Arrival]) -> Tensor:
    """``sum_i weight_i delta_i``"""
    total = torch.zeros_like(arrivals[0].update.weights)
    for arrival in arrivals:
        total.add_(arrival.update.delta, alpha=arrival.weight)
    return total
