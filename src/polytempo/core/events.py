"""What a strategy is told. Most events are just a client and the time; an update carries what the client hands in."""

from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from polytempo.core.stateful import stateful
from polytempo_client.personal.told import JuryScores


@stateful
@dataclass(frozen=True, slots=True)
class Update:
    """A client's result. ``version`` and ``start`` are the model it really came from (the last refresh, if any)."""

    client: int
    version: int
    start: Tensor
    weights: Tensor
    samples: int
    steps: int
    chosen: int | None = None
    """Which candidate the client started from, where the order offered some."""
    answers: dict[str, Any] = field(default_factory=dict)
    original: "Update | None" = None
    """What the client itself handed in, where the strategy is told something else. Read it as ``own``."""
    held_back: bool = False
    """Robust mixing holds it back: it moves no model. Read it as a ``weight`` of 0."""
    jury: JuryScores | None = None
    """What the client's jury said of the model that it was sent, where the order asked for it."""

    @property
    def delta(self) -> Tensor:
        """``w(after) - w(start)``"""
        return self.weights - self.start

    @property
    def weight(self) -> int:
        """``n_i``, what the update counts in a mean: its samples, or 0 if it is held back."""
        return 0 if self.held_back else self.samples

    @property
    def own(self) -> "Update":
        """The update as its client handed it in. Methods that compare clients look at ``update.own``: the update itself
        may be a robust mix with other clients' updates."""
        return self if self.original is None else self.original

    def mixed(self, delta: Tensor) -> "Update":
        """A copy with another delta."""
        return replace(self, weights=self.start + delta, original=self.own)

    def as_held_back(self, served: Tensor) -> "Update":
        """A copy that moves no model: it starts and ends at ``served``, and has no weight in a mean."""
        own = replace(self.own, start=served, weights=served + self.own.delta)
        return replace(own, weights=served, original=own, held_back=True)
