"""Who is better off than alone. Every client's used model is compared with what the client reaches by itself
(Standalone: same world, same seed), on the client's own test rows and row by row. Better or worse off is what a
one-sided test finds at the level of 5 %; all others are equal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from polytempo.report.facts.contenders import AGAIN, ALONE, TRAINING, WORLD, Contender, contenders_of, settings
from polytempo.report.facts.numbers import counted
from polytempo.report.facts.speed import slow_clients
from polytempo.report.run import Run
from polytempo.sim.records.used import UsedRows

LEVEL = 0.05
CHANCE = (
    f"{AGAIN} is {ALONE} with other random batches on the same rows: what it shows as better or worse off is chance."
)


@dataclass(frozen=True)
class Shares:
    """The shares of clients that are better off, equally well off and worse off than alone."""

    better: float
    equal: float
    worse: float


@dataclass(frozen=True, eq=False)
class Standings:
    """How clients stand against themselves alone."""

    verdicts: np.ndarray
    """For each client 1 if it is better off, -1 if it is worse off, 0 if neither can be said."""
    gains: np.ndarray
    """For each client how much better its used model is than what it has alone, by the metric."""
    slow: np.ndarray
    """For each client, is its device slow?"""

    def counts(self) -> tuple[int, int, int]:
        """How many are better off, equal and worse off."""
        better, worse = int((self.verdicts > 0).sum()), int((self.verdicts < 0).sum())
        return better, len(self.verdicts) - better - worse, worse

    def of_slow(self) -> "Standings":
        """Those with slow devices."""
        return Standings(self.verdicts[self.slow], self.gains[self.slow], self.slow[self.slow])


@dataclass(frozen=True, eq=False)
class RunStandings(Standings):
    """How the clients of one run stand."""

    clients: np.ndarray
    """Their numbers: those whose test rows at the end are the same in both runs."""
    left_out: int
    """How many others there are."""

    def shares(self) -> Shares | None:
        """None where nobody is compared."""
        return Shares(*(count / len(self.clients) for count in self.counts())) if len(self.clients) else None


def compared(run: Run, alone: Run) -> RunStandings | None:
    """Compare a run with another in the same world, mostly with one of Standalone; None if one of them does not say how
    clients do on their test rows."""
    mine, theirs = run.used, alone.used
    if mine is None or theirs is None or len(mine) != len(theirs) or mine.are_losses != theirs.are_losses:
        return None
    if run.scale != alone.scale:
        return None
    rows = np.diff(mine.offsets)
    same = (mine.checksums == theirs.checksums) & (rows == np.diff(theirs.offsets))
    clients = np.flatnonzero(same & (rows > 0))
    judge = _by_losses if mine.are_losses else _by_rows_right
    gains = run.final_per_client("used") - alone.final_per_client("used")
    gains = gains if run.scale.higher_is_better else -gains
    return RunStandings(
        judge(mine, theirs, clients),
        gains[clients],
        slow_clients(run)[clients],
        clients,
        left_out=int(np.count_nonzero(~same)),
    )


def same_world(run: Run, other: Run) -> bool:
    """Did both runs meet the same clients with the same data, by the same seed?"""
    return other.seed == run.seed and all(other.config.get(key) == run.config.get(key) for key in WORLD)


def comparisons(contender: Contender, runs: Sequence[Run]) -> list[tuple[Run, RunStandings]]:
    """The runs of a contender that can be compared with Standalone, each with its comparison."""
    beside = ((run, _alone_beside(run, runs)) for run in contender.runs)
    found = ((run, compared(run, alone)) for run, alone in beside if alone is not None)
    return [(run, comparison) for run, comparison in found if comparison is not None]


def together(each: Sequence[RunStandings]) -> Standings:
    """The clients of all these runs together."""
    return Standings(
        *(np.concatenate([getattr(one, name) for one in each]) for name in ("verdicts", "gains", "slow")),
    )


def better_off(contender: Contender, runs: Sequence[Run]) -> Shares | None:
    """The shares of clients that are better off, equal and worse off than alone, means over seeds; None where there is
    nothing to compare with."""
    found = [comparison.shares() for _, comparison in comparisons(contender, runs)]
    each = np.array([(shares.better, shares.equal, shares.worse) for shares in found if shares is not None])
    return Shares(*each.mean(axis=0).tolist()) if len(each) else None


def share_better_off(run: Run, alone: Run) -> float | None:
    """The share of clients that are better off in a run than in this one of Standalone; None for itself, and where
    there is nothing to compare."""
    shares = _shares(run, alone)
    return None if shares is None else shares.better


def share_worse_off(run: Run, alone: Run) -> float | None:
    """The same of those that are worse off."""
    shares = _shares(run, alone)
    return None if shares is None else shares.worse


def remarks(runs: Sequence[Run]) -> list[str]:
    """What a reader of these comparisons has to know: what chance does, who is left out, who cannot be compared, and
    whether Standalone was trained in another way."""
    contenders = contenders_of(runs)
    found = {contender.label: comparisons(contender, runs) for contender in contenders}
    again = any(contender.runs[0].strategy == AGAIN and found[contender.label] for contender in contenders)
    silent = [
        contender.label
        for contender in contenders
        if contender.runs[0].strategy != ALONE
        and len(found[contender.label]) < sum(_alone_beside(run, runs) is not None for run in contender.runs)
    ]
    beside = [(run, _alone_beside(run, runs)) for run in runs if run.strategy != ALONE]
    pairs = [(run, alone) for run, alone in beside if alone is not None]
    unlike = [key for key in TRAINING if any(run.config.get(key) != alone.config.get(key) for run, alone in pairs)]
    left_out = sum(comparison.left_out for each in found.values() for _, comparison in each)
    return [
        *([CHANCE] if again else []),
        *([_left_out(left_out)] if left_out else []),
        *([_silent(silent)] if silent else []),
        *([_unlike(unlike)] if unlike else []),
    ]


def p_of_counts(won: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """McNemar's exact test, one-sided: how likely a fair coin is to win at least as many of the rows on which two
    models differ."""
    from scipy.special import bdtrc  # here, because most runs are never compared

    p: np.ndarray = bdtrc(np.asarray(won) - 1.0, np.asarray(won) + np.asarray(lost), 0.5)
    return p


def p_of_losses(lower: np.ndarray, higher: np.ndarray) -> float:
    """Wilcoxon's signed-rank test, one-sided: how likely the first losses are so much lower by chance. Rows with equal
    losses say nothing."""
    from scipy.stats import wilcoxon  # here, because it takes a while to import

    differences = higher.astype(np.float64) - lower
    differences = differences[differences != 0]
    return float(wilcoxon(differences, alternative="greater").pvalue) if len(differences) else 1.0


def _shares(run: Run, alone: Run) -> Shares | None:
    comparison = None if run.strategy == ALONE else compared(run, alone)
    return None if comparison is None else comparison.shares()


def _by_rows_right(mine: UsedRows, theirs: UsedRows, clients: np.ndarray) -> np.ndarray:
    pairs = [(mine.client(client), theirs.client(client)) for client in clients]
    won = np.array([np.count_nonzero(a & ~b) for a, b in pairs], int)
    lost = np.array([np.count_nonzero(b & ~a) for a, b in pairs], int)
    return (p_of_counts(won, lost) < LEVEL).astype(int) - (p_of_counts(lost, won) < LEVEL)


def _by_losses(mine: UsedRows, theirs: UsedRows, clients: np.ndarray) -> np.ndarray:
    pairs = [(mine.client(client), theirs.client(client)) for client in clients]
    return np.array([int(p_of_losses(a, b) < LEVEL) - int(p_of_losses(b, a) < LEVEL) for a, b in pairs], int)


def _left_out(clients: int) -> str:
    return (
        f"{counted(clients, 'client')} left out of the comparison with {ALONE}: the test rows at the end are not the "
        "same in both runs, because the data changed at other moments."
    )


def _silent(labels: Sequence[str]) -> str:
    return (
        f"Whether clients are better off than alone is not known of every run of {', '.join(labels)}: it, or {ALONE} "
        "beside it, was made by an older version, which did not keep how models do on each test row, or has another "
        "metric. Run it again."
    )


def _unlike(keys: Sequence[str]) -> str:
    return (
        f"{ALONE} was not trained as the others were (other {', '.join(keys)}): what clients gain over it is not what "
        "they gain over training alone. Run it with the same settings."
    )


def _alone_beside(run: Run, runs: Sequence[Run]) -> Run | None:
    """Standalone with this run's seed and world; of several, the one that shares most other settings."""

    mine = settings(run).items()
    candidates = [other for other in runs if other.strategy == ALONE and same_world(run, other)]
    return max(candidates, key=lambda other: len(mine & settings(other).items()), default=None)
