"""Whether a difference between two contenders is real. Runs are paired by seed: both methods met the same clients, the
same rows and the same devices. An exact sign-flip test says how likely the mean difference is by chance, Holm's
correction keeps the level over all pairs of contenders, a bootstrap over seeds gives the interval, and the power of
the paired t-test says how many seeds a difference of this size needs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np

from polytempo.learn.metrics import Scale
from polytempo.report.facts.alone import RunStandings, compared, same_world
from polytempo.report.facts.contenders import Contender, mean
from polytempo.report.facts.scales import common_scale
from polytempo.report.run import Run
from polytempo_client.streams import stream

FIGURE = "accuracy_used"
"""The metric of the models that clients use, whatever it is called."""
LEVEL = 0.05
POWER = 0.8
"""With which probability as many seeds as are needed show the difference."""
EXACT_SEEDS = 32
"""Up to this many seeds every pattern of signs is counted; beyond, DRAWS random ones."""
DRAWS = 100_000
RESAMPLES = 10_000
MOST_SEEDS = 1000
LARGE_EFFECT = 10.0
"""In deviations. Larger effects count as this: the sign test then sets the number of seeds."""

Verdict = Literal["better", "worse", "not shown", "one seed", "no pair"]
PerSeed = Callable[[Contender], Mapping[Run, float]]
"""One number of each run of a contender, NaN where it has none."""


@dataclass(frozen=True)
class Difference:
    """A contender's figure less the reference's, by the seeds that both have."""

    contender: str
    reference: str
    seeds: int
    mean: float = math.nan
    low: float = math.nan
    """The 95 % interval of the mean, by a bootstrap over seeds; NaN with one seed."""
    high: float = math.nan
    p: float = math.nan
    """By the sign-flip test, two-sided, corrected by Holm over all pairs of contenders; NaN with one seed."""
    verdict: Verdict = "no pair"
    seeds_needed: int | None = None
    """For a power of 80 % at this mean and deviation; None where one seed says nothing, or more than 1000 would be."""
    clients: tuple[int, int, int] | None = None
    """Clients better off, equal and worse off than with the reference by the test on their own test rows, counted over
    all seeds; None where test rows cannot be compared."""


def differences_between(contenders: Sequence[Contender], figure: str = FIGURE) -> list[Difference]:
    """Every other contender against the one with the best mean. The best is chosen by the same runs, so the correction
    counts all pairs, not only those with the best."""
    scale = common_scale([run for contender in contenders for run in contender.runs])
    best = best_of(contenders, scale, figure)
    if best is None or len(contenders) < 2:
        return []
    values = per_run(figure)
    pairs = {(a, b): paired(contenders[a], contenders[b], values) for a, b in combinations(range(len(contenders)), 2)}
    corrected = dict(zip(pairs, holm([sign_flip_p(each) for each in pairs.values()]), strict=True))
    tested = sum(len(each) > 1 for each in pairs.values())
    found = []
    for other, contender in enumerate(contenders):
        if other == best:
            continue
        pair = (min(other, best), max(other, best))
        seed_by_seed = pairs[pair] if other < best else -pairs[pair]
        made = difference(seed_by_seed, corrected[pair], LEVEL / max(tested, 1), scale.higher_is_better)
        clients = _clients(contender, contenders[best])
        found.append(replace(made, contender=contender.label, reference=contenders[best].label, clients=clients))
    return found


def difference(seed_by_seed: np.ndarray, p: float, level: float = LEVEL, higher_is_better: bool = True) -> Difference:
    """What is known of a difference from one number per seed and the corrected p. ``level`` is that of the single test,
    by which the seeds needed are counted."""
    seeds = len(seed_by_seed)
    if not seeds:
        return Difference("", "", 0)
    average = float(seed_by_seed.mean())
    if seeds == 1:
        return Difference("", "", 1, average, verdict="one seed")
    low, high = bootstrap_interval(seed_by_seed)
    verdict: Verdict = "not shown" if not p <= LEVEL else "better" if (average > 0) == higher_is_better else "worse"
    needed = seeds_needed(average, float(seed_by_seed.std(ddof=1)), level)
    return Difference("", "", seeds, average, low, high, p, verdict, needed)


def is_best(contenders: Sequence[Contender], winner: int, values: PerSeed) -> bool:
    """Is one contender's advantage over every other that has values more than chance, after Holm's correction over all
    pairs of them? The direction does not matter: the winner is known."""
    known = [i for i, contender in enumerate(contenders) if not np.isnan([*values(contender).values()]).all()]
    pairs = list(combinations(known, 2))
    corrected = holm([sign_flip_p(paired(contenders[a], contenders[b], values)) for a, b in pairs])
    against = [p for pair, p in zip(pairs, corrected, strict=True) if winner in pair]
    return bool(against) and all(p <= LEVEL for p in against)


def best_of(contenders: Sequence[Contender], scale: Scale, figure: str = FIGURE) -> int | None:
    """Which contender has the best mean; None where nobody has the figure."""
    means = [mean(contender.figures(figure)) for contender in contenders]
    if np.isnan(means).all():
        return None
    return int(np.nanargmax(means) if scale.higher_is_better else np.nanargmin(means))


def per_run(figure: str) -> PerSeed:
    """A figure of the result as one number per run."""
    return lambda contender: {run: run.figure(figure) for run in contender.runs}


def paired(one: Contender, other: Contender, values: PerSeed) -> np.ndarray:
    """The first contender's value less the other's, for every seed that both have in the same world."""
    mine, theirs = values(one), values(other)
    pairs = ((run, _beside(run, other)) for run in one.runs)
    found = np.array([mine[run] - theirs[beside] for run, beside in pairs if beside is not None], float)
    return found[np.isfinite(found)]


def sign_flip_p(seed_by_seed: np.ndarray) -> float:
    """The exact sign-flip test of a mean of 0, two-sided: of all 2^n ways to give the differences signs, the share
    whose sum is at least as far from 0. NaN with fewer than two seeds. Below 6 seeds it cannot fall under 5 %."""
    values = np.asarray(seed_by_seed, float)
    if len(values) < 2:
        return math.nan
    reached = abs(float(values.sum())) - 1e-9 * float(np.abs(values).sum())  # rounding must not break a tie
    if len(values) > EXACT_SEEDS:
        signs = stream(0, "sign flips").choice((-1.0, 1.0), (DRAWS, len(values)))
        return (1 + int(np.count_nonzero(np.abs(signs @ values) >= reached))) / (1 + DRAWS)
    left, right = (_signed_sums(half) for half in np.array_split(values, 2))
    right.sort()
    # Sums come in pairs of both signs, so that those far above 0 are as many as those far below.
    above = len(right) * len(left) - int(np.searchsorted(right, reached - left).sum())
    return min(1.0, 2 * above / (len(left) * len(right)))


def holm(ps: Sequence[float]) -> list[float]:
    """Corrected by Holm: each p times the number of tests that are not yet rejected, and never below a smaller one's.
    NaN is no test, and stays."""
    corrected = list(ps)
    order = sorted((i for i, p in enumerate(ps) if not math.isnan(p)), key=lambda i: ps[i])
    highest = 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * ps[i]))
        corrected[i] = highest
    return corrected


def bootstrap_interval(seed_by_seed: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the mean: quantiles of the means of resampled seeds. The quantiles lie further out than 2.5
    and 97.5 %, as far as Student's t does of so few seeds (Hesterberg 2015, expanded percentiles)."""
    from scipy.special import ndtr, stdtrit  # here, because they take a while to import

    seeds = len(seed_by_seed)
    tail = float(ndtr(-math.sqrt(seeds / (seeds - 1)) * stdtrit(seeds - 1, 1 - LEVEL / 2)))
    drawn = stream(0, "bootstrap over seeds").integers(seeds, size=(RESAMPLES, seeds))
    low, high = np.quantile(np.asarray(seed_by_seed)[drawn].mean(axis=1), [tail, 1 - tail])
    return float(low), float(high)


def t_interval(values: np.ndarray) -> tuple[float, float]:
    """Student's 95 % interval of a mean; NaN for fewer than two values."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return math.nan, math.nan
    half = float(stdtrit(len(values) - 1, 1 - LEVEL / 2) * np.std(values, ddof=1) / math.sqrt(len(values)))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def seeds_needed(average: float, deviation: float, level: float = LEVEL) -> int | None:
    """The fewest seeds with which a paired t-test at this level finds a difference of this mean and deviation with 80 %
    probability, and with which the sign-flip test can reach the level at all. None beyond 1000."""
    fewest = fewest_seeds(level)
    if average == 0:
        return None
    if deviation == 0:
        return fewest
    seeds = np.arange(fewest, MOST_SEEDS + 1)
    enough = np.flatnonzero(_power(seeds, abs(average) / deviation, level) >= POWER)
    return int(seeds[enough[0]]) if len(enough) else None


def fewest_seeds(level: float) -> int:
    """With how many seeds the sign-flip test can reach a level at all: the smallest p of n seeds is 2 / 2^n."""
    return max(2, math.ceil(1 - math.log2(level)))


def _power(seeds: np.ndarray, effect: float, level: float) -> np.ndarray:
    """The probability that a two-sided paired t-test finds a mean of ``effect`` deviations, with its right sign."""
    from scipy.stats import nct, t  # here, because it takes a while to import

    shift = min(effect, LARGE_EFFECT) * np.sqrt(seeds)
    power: np.ndarray = nct.sf(t.isf(level / 2, seeds - 1), seeds - 1, shift)
    return power


def _signed_sums(values: np.ndarray) -> np.ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums - value, sums + value])
    return sums


def _beside(run: Run, other: Contender) -> Run | None:
    """The other contender's run with this one's seed, in the same world."""
    return next((beside for beside in other.runs if same_world(run, beside)), None)


def _clients(one: Contender, other: Contender) -> tuple[int, int, int] | None:
    pairs = ((run, _beside(run, other)) for run in one.runs)
    found = [compared(run, beside) for run, beside in pairs if beside is not None]
    each: list[RunStandings] = [comparison for comparison in found if comparison is not None]
    if not each:
        return None
    better, equal, worse = np.sum([comparison.counts() for comparison in each], axis=0).tolist()
    return better, equal, worse
