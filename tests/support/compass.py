"""Arrival groups on a scripted clock."""

from collections.abc import Sequence
from typing import Any

import torch

from polytempo.methods import Arrival, ArrivalGroups, Update, parameters
from polytempo.testing import ScriptedClock, begun, vector


class CompassClock(ScriptedClock):
    """A scripted clock under a strategy that plans arrivals."""

    @property
    def groups(self) -> list[list[int]]:
        """Members of the open arrival groups."""
        return [sorted((*group.waiting, *group.arrived)) for group in self.strategy.compass.groups.values()]


@parameters
class Keeper(ArrivalGroups):
    """Only keeps what it aggregated: per version the clients and models."""

    def setup(self) -> None:
        self.aggregated: list[list[tuple[int, float]]] = []

    def weight(self, update: Update) -> float:
        return 1.0

    def aggregate(self, arrivals: Sequence[Arrival], now: float) -> None:
        self.aggregated.append([(arrival.update.client, arrival.update.weights.item()) for arrival in arrivals])
        self.model.step(torch.zeros(1))


def keeper_clock(*seconds: float, fewest: int = 20, most: int = 100, **given: Any) -> CompassClock:
    keeper = Keeper(q_min=fewest, q_max=most, **given)
    return CompassClock(begun(keeper, vector(0.0), len(seconds)), seconds)
