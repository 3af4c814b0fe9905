"""The server's half of the personal rule: every order asks the client to keep a model of its own, and tells it what the
juries of all clients say of mixtures. The client's half is ``polytempo_client/personal/rule.py``."""

import math
from collections.abc import Iterator
from dataclasses import replace

from polytempo.core.events import Update
from polytempo.core.orders import Order, Orders, Train
from polytempo.strategies.base.wrapper import Wrapper
from polytempo.strategies.parts.tryout import Tryout
from polytempo_client.personal.rule import keeping
from polytempo_client.personal.told import SETTLED, SOLO, TUTTI, JuryScores, Personal

MIXTURES = 4
"""That a jury judges."""
FEWEST = 5
"""Clients that must have reported before the pool says anything."""
MOST_ROWS = 30
"""Of one client's jury that count in the pool."""
UNIT = 1 << 40
"""Scores are added up as whole numbers of this part: a sum does not depend on the order, and nothing is lost when a
client's report is replaced."""


class PersonalRule(Wrapper):
    """A strategy whose clients follow the personal rule. It stands outside of robust mixing, so that a report counts
    also where its update is held back."""

    revision = 2
    remembered = ("reports", "totals", "rows", "bad", "tryout")

    def setup(self) -> None:
        self.reports: dict[int, JuryScores] = {}
        """Client -> its newest report, as it counts in the pool."""
        self.totals = [0] * (2 * MIXTURES)
        self.rows = 0
        self.bad = 0
        self.tryout = Tryout(self.setting.seed)

    @property
    def bad_reports(self) -> int:
        return self.bad

    @property
    def tryout_winner(self) -> str | None:
        return self.tryout.decided or None

    def personal(self) -> Personal:
        if len(self.reports) < FEWEST:
            return Personal()
        means = [total / (UNIT * self.rows) for total in self.totals]
        return Personal(pool=JuryScores(1, tuple(means[:MIXTURES]), tuple(means[MIXTURES:])))

    # Events.

    def joined(self, client: int, now: float) -> Orders:
        return self._as_personal(super().joined(client, now))

    def ready(self, client: int, now: float) -> Orders:
        return self._as_personal(super().ready(client, now))

    def updated(self, update: Update, now: float) -> Orders:
        report = update.jury
        if report is not None and not is_sound(report):
            self.bad += 1
            update = replace(update, jury=None)
        elif report is not None:
            told = self.personal()
            self.tryout.take(update.client, report, keeping(told.pool, told) if told.pool else 0.0)
            if not report.changed:
                self._take(update.client, report)
        return self._as_personal(super().updated(update, now))

    def pulled(self, client: int, now: float) -> Orders:
        return self._as_personal(super().pulled(client, now))

    def fired(self, key: str, now: float) -> Orders:
        return self._as_personal(super().fired(key, now))

    def left(self, client: int, now: float) -> Orders:
        self._drop(client)
        return self._as_personal(super().left(client, now))

    def forget(self, client: int) -> None:
        self._drop(client)
        self.tryout.forget(client)
        super().forget(client)

    def _as_personal(self, orders: Orders) -> Iterator[Order]:
        for order in orders or ():
            yield replace(order, personal=self._personal_for(order)) if isinstance(order, Train) else order

    def _personal_for(self, order: Train) -> Personal:
        """What the strategy says, the pool, and whether to play solo."""
        told = self.personal()
        parameters = told.parameters | ({} if order.personal is None else order.personal.parameters)
        if TUTTI in parameters:
            self.tryout.look_anew(order.client)
        elif self.tryout.plays_solo(order.client):
            parameters |= {SOLO: 1.0, SETTLED: 1.0} if self.tryout.decided else {SOLO: 1.0}
        return replace(told, parameters=parameters)

    # The pool.

    def _take(self, client: int, report: JuryScores) -> None:
        self._drop(client)
        share = min(MOST_ROWS / report.rows, 1.0)
        counted = JuryScores(
            min(report.rows, MOST_ROWS),
            tuple(share * error for error in report.errors),
            tuple(share * brier for brier in report.briers),
        )
        self.reports[client] = counted
        self._add(counted, 1)

    def _drop(self, client: int) -> None:
        report = self.reports.pop(client, None)
        if report is not None:
            self._add(report, -1)

    def _add(self, report: JuryScores, sign: int) -> None:
        self.rows += sign * report.rows
        for i, score in enumerate((*report.errors, *report.briers)):
            self.totals[i] += sign * round(UNIT * score)


def is_sound(report: JuryScores) -> bool:
    """Can a jury have said this?"""
    scores = (*report.errors, *report.briers)
    return (
        report.rows >= 1
        and len(report.errors) == len(report.briers) == MIXTURES
        and all(math.isfinite(score) and -1e-6 * report.rows <= score <= (1 + 1e-6) * report.rows for score in scores)
    )
