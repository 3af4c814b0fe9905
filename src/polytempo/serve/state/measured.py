"""What the server can see of a client's device: how long its rounds took, how fast its updates came in, and how long it
was there and away. Figures are kept as sums and as a few recent values, so that a long life takes no more room."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from polytempo.core.stateful import stateful

KEPT = 31
"""Rounds whose pace is kept. Their median is the device's pace now, even if something disturbed a few of them."""
NORMAL = 1.4826
"""The standard deviation of a normal distribution over its median absolute deviation."""


@stateful
@dataclass
class Measured:
    """The record of one client."""

    paces: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    """Seconds per step of the last rounds: from the order to the update, without the time that the update came in."""
    rounds: int = 0
    """Rounds with steps so far."""
    sent_bytes: int = 0
    """Of updates, as far as their arrival could be timed, ..."""
    sent_seconds: float = 0.0
    """... and how long they took."""
    there_seconds: float = 0.0
    away_seconds: float = 0.0
    departures: int = 0
    returns: int = 0

    def note_round(self, seconds: float, steps: int, sent_bytes: int, sent_seconds: float) -> None:
        self.sent_bytes += sent_bytes
        self.sent_seconds += sent_seconds
        if steps:
            self.rounds += 1
            self.paces.append(max(seconds - sent_seconds, 0.0) / steps)

    def note_presence(self, seconds: float, was_there: bool, is_there: bool) -> None:
        """So many seconds have passed since its status last changed."""
        if was_there:
            self.there_seconds += seconds
            self.departures += not is_there
        else:
            self.away_seconds += seconds
            self.returns += is_there

    def seconds_per_step(self) -> float | None:
        return median(self.paces) if self.paces else None

    def jitter(self) -> float:
        """The spread of the rounds around their median, as a share of it."""
        middle = self.seconds_per_step()
        return NORMAL * median(abs(pace - middle) for pace in self.paces) / middle if middle else 0.0

    def upload(self) -> float | None:
        """Bytes per second to the server."""
        return self.sent_bytes / self.sent_seconds if self.sent_bytes and self.sent_seconds > 0 else None

    def availability(self, seconds: float, is_there: bool) -> tuple[float, float] | None:
        """Mean seconds there and away at a stretch, the one under way, which has lasted so long, included; None for a
        client that never came back from an absence."""
        there = self.there_seconds + (seconds if is_there else 0.0)
        away = self.away_seconds + (0.0 if is_there else seconds)
        if not self.returns or not there or not away:
            return None
        return there / self.departures, away / self.returns
