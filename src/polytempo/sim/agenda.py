"""What is to come, in order of time."""

import heapq
from enum import IntEnum
from typing import Any

from polytempo.core.stateful import Attributes, stateful


class Kind(IntEnum):
    """Kinds of events; at equal times they come in this order (arrivals before timers)."""

    DRIFT = 0
    JOIN = 1
    ARRIVAL = 2
    LOSS = 3
    DELIVERY = 4
    WAKE = 5
    PULL = 6
    TIMER = 7
    ASK = 8


Entry = tuple[float, int, int, int, Any]
"""One event to come: time, kind, number, client, detail. At equal times they come by kind, and then in the order in
which they were put down."""


@stateful
class Agenda(Attributes):
    """A heap of events, and the counter that tells them, and trainings, apart."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.number = 0

    def __bool__(self) -> bool:
        return bool(self.entries)

    def draw_ticket(self) -> int:
        """A number that was never given before."""
        self.number += 1
        return self.number

    def put(self, at: float, kind: Kind, client: int, detail: Any = None) -> None:
        heapq.heappush(self.entries, (at, int(kind), self.draw_ticket(), client, detail))

    def next_time(self) -> float:
        return self.entries[0][0]

    def pop(self) -> Entry:
        return heapq.heappop(self.entries)

    def times(self, kind: Kind) -> list[float]:
        """When events of this kind are to come."""
        return [at for at, of, *_ in self.entries if of == kind]
