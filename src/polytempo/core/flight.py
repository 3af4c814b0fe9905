"""Flights: a client's open task as the server or the simulator remembers it. Here too is the one rule that says which
model an update started from."""

from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from polytempo.core.orders import Send, Train
from polytempo.core.stateful import stateful

FEWEST_SENDS, MOST_SENDS, SENDS_BYTES = 16, 256, 64 << 20
"""Bounds of what ``forget_oldest`` keeps: as many refreshes as fit these bytes, but no fewer and no more than these."""


class Base(NamedTuple):
    """The model that a client's delta and staleness count from."""

    weights: Tensor
    version: int


def base_of(order: Train, chosen: int | None, refresh: Send | None = None) -> Base | None:
    """The model that an update started from: the last refresh, or else the candidate that the client chose, or else the
    model of the order. None if the client had to choose and did not."""
    if refresh is not None:
        return Base(refresh.weights, refresh.version)
    offered = order.candidates
    if offered is None or offered.use != "best":
        return Base(order.weights, order.version)
    return None if chosen is None else Base(offered.models[chosen], offered.versions[chosen])


@stateful
@dataclass
class Flight:
    """One client's task between dispatch and arrival, with the refreshes that belong to it."""

    number: int
    order: Train
    count: int
    """Tasks that the client was given before."""
    dispatched: float
    sends: list[tuple[int, Send]] = field(default_factory=list)
    """Refreshes, each with its number."""
    reported: int = 0
    """Number of the Report order, if there was one."""
    forgotten: int = 0
    """Number of the last refresh that is not remembered any more."""

    @property
    def latest(self) -> int:
        """Number of the last order that held a model."""
        return self.sends[-1][0] if self.sends else self.number

    @property
    def model(self) -> Tensor:
        """Weights of the last model sent, candidates aside."""
        return self.sends[-1][1].weights if self.sends else self.order.weights

    def base(self, number: int, chosen: int | None) -> Base | None:
        """The model that the client was sent under this number; None if it was not."""
        if number == self.number:
            return base_of(self.order, chosen)
        refresh = next((send for sent, send in self.sends if sent == number), None)
        return None if refresh is None else base_of(self.order, chosen, refresh)

    def renumber(self, number: int) -> int:
        """Number the task and what was sent after it from the next number on. Returns the last that was used."""
        self.number = number + 1
        self.sends = [(self.number + i, send) for i, (_, send) in enumerate(self.sends, 1)]
        last = self.number + len(self.sends)
        if self.reported:
            last = self.reported = last + 1
        self.forgotten = 0
        return last

    def refresh(self, number: int, send: Send) -> None:
        """Remember a refresh."""
        self.sends.append((number, send))

    def forget_oldest(self) -> None:
        """Forget the oldest refresh if there are too many. A client that never answers must not keep every model that
        it was sent; one that started from a forgotten model begins anew."""
        if not self.sends:
            return
        kept = min(max(SENDS_BYTES // max(self.model.nbytes, 1), FEWEST_SENDS), MOST_SENDS)
        if len(self.sends) > kept:
            self.forgotten, _ = self.sends.pop(0)

    def tensors(self) -> list[Tensor]:
        """Everything that was sent."""
        return [*self.order.tensors(), *(send.weights for _, send in self.sends)]
