"""A tryout: does it pay, in the long run, to take something of the served model? No client can tell by itself. What a
jury says of one moment favours its own model, also where the shared one makes it better over time. So some clients,
drawn by chance, go on alone for a while, and the juries of all say who improved more."""

import math
from statistics import mean
from typing import Literal

from polytempo.core.stateful import Attributes, stateful
from polytempo_client.personal.told import JuryScores
from polytempo_client.streams import stream

SHARE = 0.25
"""Of the clients that go on alone in the tryout."""
WARM_UP = 8
"""Reports of a client before it takes part: everybody has had something of the orchestra by then."""
BEFORE = 4
"""Reports, the last of the warm-up, that say how good its own model was before."""
LENGTH = 8
"""Reports from one look at a client to the next, and that a look counts."""
OFFSET = 0.02
"""Added to Brier scores before they are compared as ratios: below it they differ by chance."""
FEWEST = 8
"""Looks at clients of each side before anything is decided."""
CLEAR = 0.02
"""A side is ahead if a t-test gives a smaller p-value."""
MOST = 16
"""Looks at each side after which it is decided in any case."""
LEAD = 0.5
"""In doubt, by how much solo is ahead counts this much, ..."""
FOR_SOLO = 0.2
"""... added to the share of their own models that the pool would have clients keep. From this sum on solo wins."""


@stateful
class Side(Attributes):
    """What was seen of one side: the newest look at each of its clients, the logarithm of how its own model's Brier
    score has changed since the warm-up."""

    def __init__(self) -> None:
        self.looks = 0
        self.changes: dict[int, float] = {}

    def take(self, client: int, change: float) -> None:
        self.looks += 1
        self.changes[client] = change


@stateful
class Tryout(Attributes):
    """All clients of a federation, until it is decided."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.decided: Literal["", "solo", "mixing"] = ""
        self.solo, self.mixing = Side(), Side()
        self.reports: dict[int, int] = {}
        """Client -> how often it has reported."""
        self.watched: dict[int, tuple[float, float, int]] = {}
        """Client -> the sum of its Brier scores before, the sum since the last look, and how many it has reported."""

    def plays_solo(self, client: int) -> bool:
        """Does the client go on from its own model alone?"""
        if self.decided:
            return self.decided == "solo"
        return self.reports.get(client, 0) >= WARM_UP and bool(stream(self.seed, "tryout", client).random() < SHARE)

    def take(self, client: int, report: JuryScores, kept: float) -> None:
        """What a client's jury says of its own model, and how much of their own the pool would have clients keep. Where
        the client's data have changed, it is looked at anew."""
        if self.decided:
            return
        self.reports[client] = self.reports.get(client, 0) + 1
        if report.changed:
            self.look_anew(client)
        elif self.reports[client] > WARM_UP - BEFORE:
            self._watch(client, report.briers[0] / report.rows, kept)

    def look_anew(self, client: int) -> None:
        """What was seen of the client says nothing of what comes next."""
        self.watched.pop(client, None)

    def forget(self, client: int) -> None:
        for kept in (self.reports, self.watched, self.solo.changes, self.mixing.changes):
            kept.pop(client, None)

    def _watch(self, client: int, brier: float, kept: float) -> None:
        before, since, reports = self.watched.get(client, (0.0, 0.0, 0))
        if reports < BEFORE:
            self.watched[client] = (before + brier, 0.0, reports + 1)
            return
        since, reports = since + brier, reports + 1
        if (reports - BEFORE) % LENGTH:
            self.watched[client] = (before, since, reports)
            return
        self.watched[client] = (before, 0.0, reports)
        change = math.log((since / LENGTH + OFFSET) / (before / BEFORE + OFFSET))
        (self.solo if self.plays_solo(client) else self.mixing).take(client, change)
        self._decide(kept)

    def _decide(self, kept: float) -> None:
        looks = min(self.solo.looks, self.mixing.looks)
        if looks < FEWEST or not (self.solo.changes and self.mixing.changes):
            return
        sides = list(self.solo.changes.values()), list(self.mixing.changes.values())
        lead = mean(sides[1]) - mean(sides[0]) if min(map(len, sides)) > 1 else 0.0
        clear = lead != 0 and _differ_by_chance(*sides) < CLEAR
        if clear or looks >= MOST:
            plays_solo = lead > 0 if clear else kept + LEAD * lead >= FOR_SOLO
            self.decided = "solo" if plays_solo else "mixing"
            self.reports, self.watched = {}, {}
            self.solo, self.mixing = Side(), Side()


def _differ_by_chance(some: list[float], others: list[float]) -> float:
    """How likely it is that means of so few numbers differ as much or more by chance (Welch's t-test). Numbers that are
    all the same say nothing."""
    if len(set(some)) == len(set(others)) == 1:
        return 1.0
    from scipy.stats import ttest_ind  # here, because it takes a while to import

    return float(ttest_ind(some, others, equal_var=False).pvalue)
