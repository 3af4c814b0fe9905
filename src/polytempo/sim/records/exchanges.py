"""Exchanges: a client hands in its model and is answered with the one made for it. How good was each on the data that
the client then had, and how well did the server know of which clusters these data are a mixture?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.stateful import stateful
from polytempo.sim.executors.executor import Executor
from polytempo.sim.personal import PersonalClients
from polytempo.sim.records.history import History, Row
from polytempo.sim.records.measures import score_clients
from polytempo.sim.world import World
from polytempo.strategies import Strategy

WAITING_BYTES = 2**28
"""Memory for models that wait to be scored."""
LEAST = 1e-9
"""An estimated share below it counts as this much in a KL divergence, which would be infinite."""


@stateful
@dataclass
class Exchange:
    """One that has not been scored yet."""

    row: Row
    generation: int
    before: Tensor
    after: Tensor


class Exchanges:
    """Keeps the models of exchanges, scores many at once, and writes one row for each."""

    def __init__(
        self, strategy: Strategy, world: World, history: History, executor: Executor, personal: PersonalClients
    ) -> None:
        self.strategy, self.world, self.history, self.executor = strategy, world, history, executor
        self.personal = personal
        self.waiting: list[Exchange] = []

    def keep(self, now: float, updates: int, update: Update, staleness: int, generation: int) -> None:
        """The strategy has taken an update of a client whose data are of this generation."""
        client = update.client
        true, estimate = self._true_mixture(client, generation), self.strategy.mixture(client)
        after = self.personal.whole(client, self.strategy.model_for(client))
        row = {
            "time": now,
            "client": client,
            "updates": updates,
            "staleness": staleness,
            "mixture": true,
            "estimate": estimate,
            "kl": None if true is None or estimate is None or len(true) != len(estimate) else kl(true, estimate),
        }
        self.waiting.append(Exchange(row, generation, update.weights, after))
        if 8 * len(self.waiting) * self.world.learner.layers.model.size > WAITING_BYTES:
            self.score()

    def score(self) -> None:
        """Score what is waiting, and write it down."""
        waiting, self.waiting = self.waiting, []
        if not waiting:
            return
        before, after = (
            score_clients(
                range(len(waiting)),
                models.__getitem__,
                lambda i: self.world.federation.client(waiting[i].row["client"], waiting[i].generation),
                self.executor,
            )
            for models in ([it.before for it in waiting], [it.after for it in waiting])
        )
        for exchange, own, answered in zip(waiting, before.tolist(), after.tolist(), strict=True):
            self.history.exchanges.append(exchange.row | {"before": own, "after": answered})

    def _true_mixture(self, client: int, generation: int) -> np.ndarray | None:
        mixture = self.world.federation.mixture(client, generation)
        group = self.world.federation.group(client, generation)
        if mixture is not None or group is None or self.world.federation.groups is None:
            return mixture
        return np.eye(int(self.world.federation.groups.max()) + 1)[group]

    def save_state(self) -> dict[str, Any]:
        return {"waiting": self.waiting}

    def load_state(self, saved: dict[str, Any]) -> None:
        self.waiting = saved["waiting"]


def kl(true: np.ndarray, estimate: np.ndarray) -> float:
    """``KL(p || q) = sum_k p_k log(p_k / q_k)``"""
    there = true > 0
    return float((true[there] * np.log(true[there] / np.maximum(estimate[there], LEAST))).sum())


def exchange_figures(rows: Sequence[Row]) -> dict[str, Any]:
    """Means over the last quarter of the exchanges; None where there is nothing to take a mean of."""
    last = rows[3 * len(rows) // 4 :]
    estimated = [row for row in last if row["kl"] is not None]
    mixtures = [row["mixture"] for row in estimated or last if row["mixture"] is not None]
    return {
        "exchanges": len(rows),
        "accuracy_before": _mean([row["before"] for row in last]),
        "accuracy_after": _mean([row["after"] for row in last]),
        "mixture_kl": _mean([row["kl"] for row in estimated]),
        "mixture_kl_uniform": _mean([kl(mixture, np.full(len(mixture), 1 / len(mixture))) for mixture in mixtures]),
    }


def _mean(numbers: Sequence[float]) -> float | None:
    return float(np.mean(numbers)) if numbers else None
