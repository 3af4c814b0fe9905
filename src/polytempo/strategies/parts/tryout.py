"""A tryout: does it pay, in the long run, to take something of the served model? No client can tell by itself. What a
jury says of one moment favours its own model, also where the shared one makes it better over time. So some clients,
drawn by chance, go on alone for a while, and the juries of all say who improved more."""

from typing import Literal

from polytempo.core.orders import JuryScores
from polytempo.core.stateful import Attributes, stateful
from polytempo.core.streams import stream

SHARE = 0.25
"""Of the clients that go on alone in the tryout."""
WARM_UP = 8
"""Reports of a client before it takes part: everybody has had something of the orchestra by then."""
LENGTH = 8
"""Reports from one look at a client to the next."""
FEWEST = 8
"""Looks at clients of each side before anything is decided."""
MOST = 32
"""Looks at each side after which it is decided in any case."""
CLEAR = 1.0
"""Standard errors by which one side must be ahead until then."""


@stateful
class Side(Attributes):
    """What was seen of one side: by how much the Brier scores of its clients' own models changed between two looks."""

    def __init__(self) -> None:
        self.looks = 0
        self.mean = 0.0
        self.squares = 0.0

    def take(self, change: float) -> None:
        self.looks += 1
        away = change - self.mean
        self.mean += away / self.looks
        self.squares += away * (change - self.mean)

    @property
    def variance_of_mean(self) -> float:
        return self.squares / (self.looks * (self.looks - 1))


@stateful
class Tryout(Attributes):
    """All clients of a federation, until it is decided."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.decided: Literal["", "solo", "mixing"] = ""
        self.solo, self.mixing = Side(), Side()
        self.reports: dict[int, int] = {}
        """Client -> how often it has reported."""
        self.begun: dict[int, tuple[float, int]] = {}
        """Client -> its Brier score at the last look, and its reports since."""

    def plays_solo(self, client: int) -> bool:
        """Does the client go on from its own model alone?"""
        if self.decided:
            return self.decided == "solo"
        return self.reports.get(client, 0) >= WARM_UP and bool(stream(self.seed, "tryout", client).random() < SHARE)

    def take(self, client: int, report: JuryScores) -> None:
        """What a client's jury says of its own model. Where its data have changed, it is looked at anew."""
        if self.decided:
            return
        self.reports[client] = self.reports.get(client, 0) + 1
        if report.changed or self.reports[client] < WARM_UP:
            self.look_anew(client)
            return
        now = report.briers[0] / report.rows
        before, since = self.begun.get(client, (now, -1))
        if since + 1 < LENGTH:
            self.begun[client] = (before, since + 1)
            return
        (self.solo if self.plays_solo(client) else self.mixing).take(now - before)
        self.begun[client] = (now, 0)
        self._decide()

    def look_anew(self, client: int) -> None:
        """What comes next says nothing of either side: the client is looked at from there on."""
        self.begun.pop(client, None)

    def forget(self, client: int) -> None:
        self.reports.pop(client, None)
        self.begun.pop(client, None)

    def _decide(self) -> None:
        """In doubt for solo: nobody shall be worse off than alone."""
        looks = min(self.solo.looks, self.mixing.looks)
        if looks < FEWEST:
            return
        ahead = self.mixing.mean - self.solo.mean
        clear = CLEAR * (self.solo.variance_of_mean + self.mixing.variance_of_mean) ** 0.5
        if abs(ahead) > clear or looks >= MOST:
            self.decided = "mixing" if ahead < -clear else "solo"
            self.reports, self.begun = {}, {}
