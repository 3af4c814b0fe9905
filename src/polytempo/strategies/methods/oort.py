"""Oort: efficient federated learning via guided participant selection (Lai et al., OSDI 2021), Algorithm 1.

From the paper: the statistical utility and the penalty of slow clients, the bonus of clients that were last seen long
ago, clipping at the 95th percentile, the cut-off at 95 % of the utility of the last that would be taken and the draw
among those above it, exploration that decays from .9 by .98 a round to .2, windows of 20 rounds for the pacer.

From the authors' code: utilities are scaled to 0..1 before the bonus is added, T is a percentile of the known
durations, so that it needs no unit, and the pacer looks once in a window. T_0 is the 30th percentile and a step of the
pacer 5, the usual defaults of that code. It raises T where utility has become flat; here T grows where it falls, as in
the paper.

Left out: clients are not barred after a number of rounds (with a few dozen clients nobody would be left), no more than
are needed are started, and the unknown are explored uniformly, since nothing is known of their speed before they came.
Testing participants are no matter of training.

A client whose loss statistics are missing or make no sense counts as unexplored, as does one that comes back. With
``--participation all`` everybody takes part in every round and this is FedAvg."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from polytempo.core.events import Update
from polytempo.core.orders import Orders, Train
from polytempo.core.stateful import stateful
from polytempo.strategies.base.strategy import strategy
from polytempo.strategies.methods.fedavg import FedAvg
from polytempo_client.streams import stream

LOSSES = "loss-statistics"
CLIPPED = 0.95
"""Utilities are clipped at this quantile, so that an outlier does not outshine everybody."""
LARGEST = float(np.finfo(float).max)
ROUNDING = 1e-9


@stateful
@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of a client from the last round that it took part in."""

    utility: float
    """``n_i sqrt(mean loss^2)``"""
    seconds: float
    """t_i, from order to arrival."""
    round: int


@strategy("oort")
class Oort(FedAvg):
    """FedAvg in rounds with the clients of the highest utility ``n_i sqrt(mean loss^2)``, scaled, plus
    ``sqrt(.1 log R / last round)``, times ``(T / t_i)^2`` for those that need longer than T; a share epsilon, which
    decays, is left for clients that are still unknown. T grows when the utility gathered falls."""

    exploration: float = Field(0.9, ge=0, le=1, description="epsilon, share of the first round for unknown clients")
    exploration_decay: float = Field(0.98, gt=0, le=1, description="of epsilon, per round")
    exploration_min: float = Field(0.2, ge=0, le=1, description="epsilon does not fall below this")
    cutoff: float = Field(
        0.95, ge=0, le=1, description="c: who is above this share of the utility of the last that would be taken may be"
    )
    penalty: float = Field(2.0, ge=0, description="alpha, exponent of T / t_i for a client slower than T")
    pace: float = Field(0.3, gt=0, le=1, description="T at first: this quantile of the known clients' seconds")
    pace_step: float = Field(0.05, ge=0, le=1, description="Delta, by which the quantile is raised")
    window: int = Field(20, ge=1, description="W, rounds after which the pacer compares the utility gathered")

    def setup(self) -> None:
        self.round = 0
        """R, the number of the open or last round, from 1."""
        self.opened = 0.0
        self.seen: dict[int, Seen] = {}
        """The explored clients that are there."""
        self.quantile = self.pace
        self.gathered = 0.0
        """Utility in the rounds of this window, and of the window before."""
        self.gathered_before = 0.0

    def order_for(self, client: int, now: float) -> Train:
        return self.train(client, self.model, questions=(LOSSES,))

    def updated(self, update: Update, now: float) -> Orders:
        mean_square = as_mean_square(update.answers.get(LOSSES))
        if mean_square is None:
            self.seen.pop(update.client, None)
        else:
            utility = update.samples * math.sqrt(mean_square)
            self.seen[update.client] = Seen(utility, now - self.opened, self.round)
            self.gathered += utility
        return super().updated(update, now)

    def left(self, client: int, now: float) -> Orders:
        self.seen.pop(client, None)
        return super().left(client, now)

    def forget(self, client: int) -> None:
        self.gathered = self.gathered_before = 0.0
        super().forget(client)

    def epsilon(self) -> float:
        """The share of this round that is left for exploration."""
        return max(self.exploration * self.exploration_decay ** (self.round - 1), self.exploration_min)

    def utilities(self, clients: list[int]) -> np.ndarray:
        """What explored clients are worth in this round."""
        preferred = float(np.quantile([seen.seconds for seen in self.seen.values()], self.quantile, method="higher"))
        seen = [self.seen[client] for client in clients]
        slowness = np.array([max(one.seconds / preferred, 1.0) if preferred else 1.0 for one in seen])
        unseen = np.sqrt(0.1 * math.log(self.round) / np.array([one.round for one in seen]))
        return (scaled([one.utility for one in seen]) + unseen) / slowness**self.penalty

    def _open(self, now: float) -> Orders:
        """A round, as in ``Rounds``, but with those who are worth most."""
        wanted = self.participation.wanted()
        if self.waiting or not wanted:
            return None
        self._set_pace()
        self.round, self.opened = self.round + 1, now
        picked = self._picked(self.participation.idle(), wanted)
        self.participation.employ(picked)
        self.waiting = dict.fromkeys(sorted(picked))
        return self._start(list(self.waiting), now)

    def _set_pace(self) -> None:
        """The pacer: once in a window, T grows if less utility was gathered in it than in the one before."""
        if self.round and self.round % self.window == 0:
            if self.gathered < self.gathered_before:
                self.quantile = min(self.quantile + self.pace_step, 1.0)
            self.gathered, self.gathered_before = 0.0, self.gathered

    def _picked(self, idle: list[int], wanted: int) -> list[int]:
        known = [client for client in idle if client in self.seen]
        unknown = [client for client in idle if client not in self.seen]
        exploited = min(max(math.floor((1 - self.epsilon()) * wanted + ROUNDING), wanted - len(unknown)), len(known))
        return self._exploited(known, exploited) + self._explored(unknown, wanted - exploited)

    def _exploited(self, known: list[int], count: int) -> list[int]:
        """Draw, in proportion to utility, among those that come near the last of the best."""
        if not count:
            return []
        utilities = self.utilities(known)
        near = np.flatnonzero(utilities >= self.cutoff * np.sort(utilities)[-count])
        rng = stream(self.setting.seed, "oort exploit", self.round)
        # Of clocks that ring at rates w, the first to ring are a draw by w without replacement; zeros in w do no harm.
        rings = rng.exponential(size=len(near)) / np.maximum(utilities[near], np.finfo(float).tiny)
        return [known[index] for index in near[np.argsort(rings, kind="stable")[:count]]]

    def _explored(self, unknown: list[int], count: int) -> list[int]:
        return stream(self.setting.seed, "oort explore", self.round).permutation(unknown)[:count].tolist()


def scaled(utilities: list[float]) -> np.ndarray:
    """Utilities clipped and stretched from 0 to 1; all 0 where they are the same."""
    clipped = np.minimum(utilities, np.quantile(utilities, CLIPPED, method="lower"))
    spread = np.ptp(clipped)
    return (clipped - clipped.min()) / spread if spread else np.zeros(len(clipped))


def as_mean_square(answer: Any) -> float | None:
    """The mean square of the losses in a client's answer; None for anything else, since clients may send what they
    like."""
    found: Any = answer.get("mean_square") if isinstance(answer, dict) else None
    return float(found) if type(found) in (int, float) and 0 <= found <= LARGEST else None
