"""How many samples a client is believed to have. It says so itself, and methods that average by samples would let one
client decide alone: claims count up to a multiple of the median claim, with one vote per client."""

from dataclasses import replace
from statistics import median_low

from polytempo.core.events import Update
from polytempo.core.orders import Orders
from polytempo.strategies.base.strategy import Strategy
from polytempo.strategies.base.wrapper import Wrapper
from polytempo.strategies.parts.robust import needed

FEWEST = 3
"""A median of fewer claims is whatever one client says."""


class CappedSamples(Wrapper):
    """A strategy that is told of no more samples than ``cap`` times the median of the clients' newest claims."""

    remembered = ("members", "claims")

    def __init__(self, inner: Strategy, cap: float) -> None:
        super().__init__(inner)
        self.cap = cap

    def setup(self) -> None:
        self.members: dict[int, None] = {}
        """Clients that have joined and not left."""
        self.claims: dict[int, int] = {}
        """Client -> the samples that it last claimed. Who leaves keeps its vote: otherwise whoever stays would set the
        measure alone."""

    def joined(self, client: int, now: float) -> Orders:
        self.members[client] = None
        return super().joined(client, now)

    def left(self, client: int, now: float) -> Orders:
        self.members.pop(client, None)
        return super().left(client, now)

    def forget(self, client: int) -> None:
        self.claims.pop(client, None)
        super().forget(client)

    def updated(self, update: Update, now: float) -> Orders:
        self.claims[update.client] = update.samples
        most = max(int(self.cap * self._usual_claim()), 1)
        return super().updated(update if update.samples <= most else replace(update, samples=most), now)

    def _usual_claim(self) -> int:
        """The median claim. Until enough clients have handed in, the others count as if each had one batch: the first
        to hand in is not measured by itself."""
        at_once = self.setting.participation.of(len(self.members))
        silent = max(needed(len(self.members), at_once), FEWEST) - len(self.claims)
        return median_low([*self.claims.values(), *[self.setting.work.batch_size] * silent])
