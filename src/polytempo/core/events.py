"""What a strategy is told. Most events are just a client and the time; an update carries what the client hands in."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from polytempo.core.state import stateful


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
    own: Tensor | None = None
    """What the client itself handed in, where ``weights`` are a robust mix with what others did or lead nowhere."""
    counts: bool = True
    """False where it is to move nothing: then its client's samples have no weight in a mean."""

    @property
    def delta(self) -> Tensor:
        """``w(after) - w(start)``"""
        return self.weights - self.start

    @property
    def counted_samples(self) -> int:
        return self.samples if self.counts else 0

    @property
    def own_weights(self) -> Tensor:
        """What the client itself handed in: for methods that compare clients."""
        return self.weights if self.own is None else self.own

    @property
    def own_delta(self) -> Tensor:
        return self.own_weights - self.start
