"""Arrival groups: clients that were planned to arrive together, and what became of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Row = Mapping[str, Any]


class ArrivedClient(NamedTuple):
    """A client's part in an arrival group: its steps, when they were dispatched and when they arrived."""

    client: int
    steps: int
    began: float
    arrived: float


@dataclass(frozen=True)
class ArrivedGroup:
    """Clients that were planned to arrive together: when they were expected, how long the server waited at most, the
    members that did arrive, the first one first, and those that were awaited in vain, in the order in which their
    trainings were lost."""

    number: int
    expected: float
    latest: float
    arrivals: list[ArrivedClient]
    lost: list[int]

    def late(self) -> list[ArrivedClient]:
        """The members that came after the latest time, when the group had been aggregated without them."""
        return [member for member in self.arrivals if member.arrived > self.latest]


def arrival_groups(updates: Sequence[Row], marks: Sequence[Row]) -> list[ArrivedGroup]:
    """The groups of planned arrivals among these rows, by number."""
    groups: dict[int, ArrivedGroup] = {}

    def group_of(row: Row) -> ArrivedGroup:
        number = row["arrival_group"]
        return groups.setdefault(number, ArrivedGroup(number, row["expected"], row["latest"], [], []))

    for update in filter(_is_planned, updates):
        arrived = ArrivedClient(update["client"], update["steps"], update["began"], update["time"])
        group_of(update).arrivals.append(arrived)
    for mark in filter(_is_planned, marks):
        group_of(mark).lost.append(mark["client"])
    return [groups[number] for number in sorted(groups)]


def _is_planned(row: Row) -> bool:
    return row.get("arrival_group") is not None
