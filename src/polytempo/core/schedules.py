"""Numbers that change over a client's rounds, such as a learning rate. A plain float is a constant schedule."""

from dataclasses import dataclass
from math import cos, inf, pi
from typing import Literal

from polytempo.core.errors import UserError
from polytempo.core.stateful import stateful


@stateful
@dataclass(frozen=True, slots=True)
class Schedule:
    """``step:0.1:0.5:10`` starts at 0.1 and halves every 10 of the client's rounds; ``cosine:0.1:0.001:100`` falls
    along half a cosine from 0.1 to 0.001 in 100 rounds and stays there."""

    kind: Literal["step", "cosine"]
    start: float
    change: float
    rounds: int

    def __call__(self, done: int) -> float:
        """The value for a client that has finished ``done`` rounds."""
        if self.kind == "step":
            return self.start * self.change ** (done // self.rounds)
        share = min(done / self.rounds, 1.0)
        return self.change + (self.start - self.change) * (1 + cos(pi * share)) / 2


def parse_rate(text: str | float) -> float | Schedule:
    """A number, or a schedule in words."""
    try:
        rate = float(text)
    except ValueError:
        return _parse_schedule(str(text))
    if not 0 < rate < inf:
        raise UserError(f"Learning rate {text} is not usable. Expected a finite number above 0.")
    return rate


def _parse_schedule(text: str) -> Schedule:
    kind, *rest = text.split(":")
    try:
        start, change, rounds = float(rest[0]), float(rest[1]), int(rest[2])
        fits = 0 < start < inf and 0 <= change < inf and rounds >= 1
        if kind not in ("step", "cosine") or len(rest) != 3 or not fits:
            raise ValueError
    except (ValueError, IndexError):
        raise UserError(
            f"Learning rate {text!r} is neither a number nor a schedule. "
            "Expected 0.01, step:START:FACTOR:ROUNDS or cosine:START:END:ROUNDS, with finite numbers, START above 0."
        ) from None
    return Schedule(kind, start, change, rounds)  # type: ignore[arg-type]


def rate_at(rate: float | Schedule, done: int) -> float:
    return rate(done) if isinstance(rate, Schedule) else rate
