"""Compass: the scheduler of FedCompass (Li et al., ICLR 2024, Algorithms 1 to 3). It learns from response times how
fast clients are and gives each so many steps that several arrive together. It knows clients and times, but no models.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import floor

from polytempo.core.stateful import Attributes, stateful

ROUNDING = 1e-9
"""Steps that a quotient of times may fall short of a whole number by rounding alone."""
FASTEST = 1e-9
"""Seconds per step of a client that answered in no time: a speed has to be more than 0."""


@stateful
@dataclass
class ArrivalGroup:
    """Clients that are to arrive together: the paper's CL and ACL, T_a and T_max."""

    number: int
    expected: float
    latest: float
    waiting: dict[int, None] = field(default_factory=dict)
    """Members that have not arrived yet."""
    arrived: dict[int, None] = field(default_factory=dict)


@stateful
@dataclass
class Planned:
    """What a client was assigned: a number of steps, at a time, for an arrival group; None in its first round."""

    group: int | None
    steps: int
    start: float


@stateful
class Compass(Attributes):
    """Who arrives when, with whom, and how many steps it is given for that: between ``fewest`` (Q_min) and ``most``
    (Q_max). A group waits for its members until ``latest_factor`` (lambda) times the time it was made for. Groups have
    numbers that are never used twice; a group that was closed takes nobody any more, and whoever arrives for it is
    late."""

    def __init__(self, fewest: int, most: int, latest_factor: float) -> None:
        self.fewest, self.most, self.latest_factor = fewest, most, latest_factor
        self.speed: dict[int, float] = {}
        """Seconds per step in the last round of each client that ever arrived."""
        self.planned: dict[int, Planned] = {}
        """Of clients that are in training, or have arrived and wait for their group."""
        self.groups: dict[int, ArrivalGroup] = {}
        """The open ones."""
        self.last_group = 0

    def assign(self, client: int, now: float) -> ArrivalGroup | None:
        """ASSIGNGROUP: join a group or make one. The group if it was made; a client of unknown speed gets the fewest
        steps and no group."""
        if client not in self.speed:
            self.planned[client] = Planned(None, self.fewest, now)
            return None
        joined = self._join_group(client, now)
        group, steps = joined or self._create_group(client, now)
        group.waiting[client] = None
        self.planned[client] = Planned(group.number, steps, now)
        return None if joined else group

    def arrive(self, client: int, now: float, steps: int) -> ArrivalGroup | None:
        """A client hands in so many steps, and shows its speed. Its group, if it came in time for that; whoever has
        none, in its first round or because it is late, is free."""
        planned, group = self.planned[client], self.group_of(client)
        self.speed[client] = max((now - planned.start) / max(steps, 1), FASTEST)
        if group is None:
            del self.planned[client]
        else:
            del group.waiting[client]
            group.arrived[client] = None
        return group

    def close(self, number: int) -> list[int]:
        """End a group: its members that have arrived, the fastest first. They are free, the others late."""
        members = self.fastest_first(self.groups.pop(number).arrived)
        for client in members:
            del self.planned[client]
        return members

    def leave(self, client: int) -> ArrivalGroup | None:
        """A client is gone, with its plan. The group that it was a member of."""
        group = self.group_of(client)
        self.planned.pop(client, None)
        if group is not None:
            group.waiting.pop(client, None)
            group.arrived.pop(client, None)
        return group

    def group_of(self, client: int) -> ArrivalGroup | None:
        """The open group that the client is a member of."""
        planned = self.planned.get(client)
        return None if planned is None or planned.group is None else self.groups.get(planned.group)

    def fastest_first(self, clients: Iterable[int]) -> list[int]:
        """Clients by seconds per step, those of unknown speed first."""
        return sorted(clients, key=lambda client: (self.speed.get(client, 0.0), client))

    def _join_group(self, client: int, now: float) -> tuple[ArrivalGroup, int] | None:
        """JOINGROUP: the group for which the client can do most steps, within the bounds, and how many."""
        steps = {number: self._steps_until(group.expected, client, now) for number, group in self.groups.items()}
        possible = [number for number in steps if self.fewest <= steps[number] <= self.most]
        best = max(possible, key=lambda number: (steps[number], number), default=None)
        return None if best is None else (self.groups[best], steps[best])

    def _create_group(self, client: int, now: float) -> tuple[ArrivalGroup, int]:
        """CREATEGROUP: steps that let an existing group join the new one when it has arrived and its fastest member has
        done the most steps again; the most steps where that cannot be."""
        steps = -1
        for group in self.groups.values():
            if now < group.expected:
                fastest = min(self.speed[member] for member in (*group.waiting, *group.arrived))
                steps = max(steps, self._steps_until(group.expected + fastest * self.most, client, now))
        steps = self.most if not 0 <= steps <= self.most else max(steps, self.fewest)
        seconds = steps * self.speed[client]
        self.last_group += 1
        group = ArrivalGroup(self.last_group, now + seconds, now + self.latest_factor * seconds)
        self.groups[group.number] = group
        return group, steps

    def _steps_until(self, time: float, client: int, now: float) -> int:
        return floor((time - now) / self.speed[client] + ROUNDING)
