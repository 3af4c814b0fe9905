"""A tournament of strategies in one world. In every round the strategies that are left run for the same virtual time,
on the same seeds, and are ranked by clients' validation rows. The better half goes on for twice as long, until the time
that was given for it is over. Test rows have no part in it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from polytempo.core.errors import DivergenceError, UserError
from polytempo.learn.metrics import Scale, scale_of
from polytempo.report.facts.numbers import counted
from polytempo.report.facts.significance import t_interval
from polytempo.sim.experiment import Experiment, changed
from polytempo.sim.run import Finished

CONTENDERS = ("standalone", "fedavg", "fedasync", "fedbuff", "fedcompass", "casa", "echopfl", "pace", "concerto")
"""Those that need nothing that a world may lack."""
PACEMAKER = "fedasync"
"""The first round lasts ..."""
FIRST_SHARE = 0.25
"""... this share of the time that this strategy takes for as many updates as a run has by default."""
FEWEST = 2
"""The fewest that go on."""

UNKNOWN = (math.nan, math.nan)
Make = Callable[[Experiment], Finished]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Standing:
    """A strategy in the last round that it was in."""

    strategy: str
    round: int
    values: tuple[float, ...] = ()
    """The metric of used models on validation rows, one per seed."""
    interval: tuple[float, float] = UNKNOWN
    """The 95 % interval of its mean; NaN with one seed."""
    behind: tuple[float, float] = UNKNOWN
    """The 95 % interval of how much it is behind the first of its round, seed by seed; NaN for the first, and with one
    seed."""
    failure: str = ""
    """Why a run did not end: its training diverged."""

    @property
    def mean(self) -> float:
        return fmean(self.values) if self.values and not self.failure else math.nan


@dataclass(frozen=True)
class Advice:
    """What a tournament found."""

    standings: tuple[Standing, ...]
    """The best first: those of the last round, then those of the round before, ..."""
    rounds: int
    length: float
    """The virtual time of a run of the last round, in seconds."""
    seeds: int
    scale: Scale

    @property
    def best(self) -> Standing:
        return self.standings[0]

    def figures(self) -> dict[str, Any]:
        """For scripts."""
        return {
            "best": self.best.strategy,
            "not_worse": self.not_worse,
            "rounds": self.rounds,
            "virtual_seconds": self.length,
            "seeds": self.seeds,
            "metric": self.scale.name,
            "standings": [_plain(one) for one in self.standings],
        }

    @property
    def not_worse(self) -> list[str]:
        """The strategies of the last round that the best one is not shown to be ahead of."""
        others = (one for one in self.standings[1:] if one.round == self.rounds and not one.failure)
        return [one.strategy for one in others if not one.behind[0] > 0]


@dataclass
class Budget:
    """So much time, by some clock."""

    limit: float
    clock: Callable[[], float]
    longest: float = 0.0
    """What the longest run took."""

    def made(self, make: Make, experiment: Experiment) -> Finished:
        """A run, and how long it takes."""
        begun = self.clock()
        try:
            return make(experiment)
        finally:
            self.longest = max(self.longest, self.clock() - begun)

    def is_enough(self, more: float | None = None) -> bool:
        """For so much more, or for another run as long as the longest?"""
        return self.clock() + (self.longest if more is None else more) <= self.limit


class _Round(NamedTuple):
    """One round that ended."""

    length: float
    standings: list[Standing]

    @property
    def survivors(self) -> list[str]:
        """The better half."""
        ended = [one.strategy for one in self.standings if not one.failure]
        return ended[: max(FEWEST, math.ceil(len(self.standings) / 2))]


def hold_tournament(
    base: Experiment,
    contenders: Sequence[str],
    seeds: int,
    budget: Budget,
    make: Make,
    tell: Tell = lambda label: None,
) -> Advice:
    """Rank the contenders in the world of ``base``, whose strategy does not count. Its ``time`` is the longest that a
    run lasts."""
    tell(f"{PACEMAKER}, to see how long a first round lasts")
    first = budget.made(make, changed(base, {"strategy": PACEMAKER, "time": None}))
    scale, longest = scale_of(first.config), base.time or math.inf
    length, left, rounds = min(FIRST_SHARE * first.result.virtual_time, longest), list(contenders), list[_Round]()
    while left:
        begun = budget.clock()
        runs = [_run(base, name, length, base.seed + seed) for seed in range(seeds) for name in left]
        values = _values(runs, budget, make, lambda run: tell(f"round {len(rounds) + 1}: {run}"))
        if values is None:
            break
        rounds.append(_Round(length, _ranked(values, len(rounds) + 1, scale)))
        share = 2 * len(rounds[-1].survivors) / len(left)
        if length >= longest or not budget.is_enough(share * (budget.clock() - begun)):
            break
        length, left = min(2 * length, longest), rounds[-1].survivors
    if not rounds:
        raise UserError(
            f"The time is over before the first round: {len(left)} strategies with {counted(seeds, 'seed')}, whose "
            f"longest run took {budget.longest:.0f} s. Give more --minutes, fewer strategies, or fewer --seeds."
        )
    last = {one.strategy: one for each in rounds for one in each.standings}
    order = [one.strategy for each in reversed(rounds) for one in each.standings]
    return Advice(tuple(last[name] for name in dict.fromkeys(order)), len(rounds), rounds[-1].length, seeds, scale)


def _run(base: Experiment, strategy: str, length: float, seed: int) -> Experiment:
    return changed(base, {"strategy": strategy, "time": length, "seed": seed})


def _values(runs: Sequence[Experiment], budget: Budget, make: Make, tell: Tell) -> dict[str, list[float] | str] | None:
    """The metric on validation rows of all runs by strategy, or why one of its runs did not end; None if the budget
    does not last."""
    found: dict[str, list[float] | str] = {}
    for number, run in enumerate(runs, 1):
        values = found.setdefault(run.strategy, [])
        if isinstance(values, str):
            continue
        if not budget.is_enough():
            return None
        tell(f"{run.strategy}, seed {run.seed} ({number} of {len(runs)})")
        try:
            validation = budget.made(make, run).result.accuracy_validation
        except DivergenceError as error:
            found[run.strategy] = str(error)
            continue
        if validation is None:
            raise UserError("No client has validation rows. Give a --validation-share above 0, and clients more rows.")
        values.append(validation)
    return found


def _ranked(values: Mapping[str, list[float] | str], number: int, scale: Scale) -> list[Standing]:
    """The best first. Those that did not end come last."""
    sign = 1 if scale.higher_is_better else -1
    ended = {name: of for name, of in values.items() if not isinstance(of, str)}
    order = sorted(ended, key=lambda name: -sign * fmean(ended[name]))
    standings = []
    for name in order:
        lost = sign * (np.array(ended[order[0]]) - np.array(ended[name]))
        behind = UNKNOWN if name == order[0] else t_interval(lost)
        standings.append(Standing(name, number, tuple(ended[name]), _interval(ended[name], scale), behind))
    failed = [Standing(name, number, failure=of) for name, of in values.items() if isinstance(of, str)]
    return standings + failed


def _interval(values: Sequence[float], scale: Scale) -> tuple[float, float]:
    """Of the mean; of shares, cut off where nothing can be."""
    low, high = t_interval(np.array(values))
    return (max(low, 0.0), min(high, 1.0)) if scale.share and len(values) > 1 else (low, high)


def _plain(standing: Standing) -> dict[str, Any]:
    numbers = {"mean": standing.mean, "low": standing.interval[0], "high": standing.interval[1]}
    behind = {"behind_low": standing.behind[0], "behind_high": standing.behind[1]}
    known = {name: None if math.isnan(value) else value for name, value in {**numbers, **behind}.items()}
    return {"strategy": standing.strategy, "round": standing.round, **known, "failure": standing.failure or None}
