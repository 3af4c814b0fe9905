"""Verdicts: what our results say of a claim.

A rule compares two expressions, and has one value per seed: how much its left side is ahead of its right side, as the
claim has it (of quotients, in logarithms). Rows are compared seed by seed, so a seed counts if all that the rule needs
is known of it. The mean has a 95 % interval by the t-distribution.

    holds          the interval excludes the opposite; and where the paper gives a size, ours is near enough to it
    direction      the interval excludes the opposite, but the size is another
    contradicted   the interval excludes the claim
    open           the interval excludes neither, or there are fewer than three seeds
    not tested     there is no rule, and the claim says why"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, stdev
from typing import Literal

from polytempo.papers.bench import Table, benches
from polytempo.papers.claims.claims import Claim, Paper, table_of
from polytempo.papers.claims.rules import ClaimRule, Lookup, Name, Value
from polytempo.papers.records import PUBLISHED, Measured, Record, Records

Word = Literal["holds", "direction", "contradicted", "open", "not tested"]
WORDS: tuple[Word, ...] = ("holds", "direction", "contradicted", "open", "not tested")
FEWEST_SEEDS = 3
FEW = "fewer than three seeds"
LEVEL = 0.95
LENGTH = "virtual_time"
"""The figure by which a target that was not reached is a bound: the run has looked for it until then."""


@dataclass(frozen=True)
class Verdict:
    """What our results say of a claim."""

    word: Word
    seeds: int = 0
    """How many count."""
    ours: float | None = None
    """The mean of the left side of the rule; of quotients, the geometric mean."""
    low: float | None = None
    high: float | None = None
    """The ends of its interval; None with one seed."""
    bound: bool = False
    """Is ours at least this, because a target was not reached?"""
    why: str = ""
    """What is missing, where the claim is open."""

    @property
    def decided(self) -> bool:
        return self.word in ("holds", "direction", "contradicted")


def judge(claim: Claim, lookup: Callable[[Name, int], Value | None], seeds: Sequence[int]) -> Verdict:
    """The verdict on a claim. ``lookup`` gives a figure, with its table and bench, of one seed."""
    if not claim.rule:
        return Verdict("not tested", why=claim.reason)
    rule = claim.read()
    without = [name for name in rule.names() if not any(lookup(claim.in_full(name), seed) for seed in seeds)]
    if without:
        return Verdict("open", why=f"no run of {_rows(claim, without)}")
    values = [sides for seed in seeds if (sides := _sides(rule, _at(claim, lookup, seed))) is not None]
    if not values:
        return Verdict("open", why="no seed has all that is compared")
    ahead = [_ahead(rule, left.number, right.number) for left, right in values]
    ours = [left.number for left, _ in values]
    bound = any(left.at_least for left, _ in values)
    mean = math.exp(fmean(map(math.log, ours))) if rule.is_ratio else fmean(ours)
    if len(ahead) < 2:
        return Verdict("open", 1, mean, bound=bound, why=FEW)
    half = half_interval(ahead)
    low, high = _interval_of(rule, ours)
    known = (len(ahead), mean, low, high, bound)
    if len(ahead) < FEWEST_SEEDS:
        return Verdict("open", *known, why=FEW)
    if fmean(ahead) + half < 0:
        return Verdict("contradicted", *known)
    if fmean(ahead) - half <= 0:
        return Verdict("open", *known, why="the interval has both signs")
    return Verdict("holds" if _has_size(claim, rule, mean, bound) else "direction", *known)


def _rows(claim: Claim, names: Sequence[Name]) -> str:
    """Their rows, table by table."""
    rows: dict[str, dict[str, None]] = {}
    for name in names:
        rows.setdefault(claim.in_full(name).table, {})[name.row] = None
    return "; ".join(f"{table}: {', '.join(labels)}" for table, labels in rows.items())


def half_interval(values: Sequence[float]) -> float:
    """Half the 95 % interval of the mean of these values."""
    return _student(len(values) - 1) * stdev(values) / math.sqrt(len(values))


@cache
def _student(degrees: int) -> float:
    from scipy.stats import t  # here, because it takes a while to import

    return float(t.ppf((1 + LEVEL) / 2, degrees))


def _at(claim: Claim, lookup: Callable[[Name, int], Value | None], seed: int) -> Lookup:
    return lambda name: lookup(claim.in_full(name), seed)


def _sides(rule: ClaimRule, lookup: Lookup) -> tuple[Value, Value] | None:
    """Both sides of a rule with one seed; None where they cannot be compared."""
    left, right = rule.left_value(lookup), rule.right_value(lookup)
    if left is None or right is None or (rule.is_ratio and min(left.number, right.number) <= 0):
        return None
    return left, right


def _ahead(rule: ClaimRule, left: float, right: float) -> float:
    """How much the left side is ahead, as the claim has it."""
    difference = math.log(left / right) if rule.is_ratio else left - right
    return difference if rule.more else -difference


def _interval_of(rule: ClaimRule, ours: Sequence[float]) -> tuple[float, float]:
    """The interval of the left side."""
    values = [math.log(value) for value in ours] if rule.is_ratio else list(ours)
    mean, half = fmean(values), half_interval(values)
    low, high = mean - half, mean + half
    return (math.exp(low), math.exp(high)) if rule.is_ratio else (low, high)


def _has_size(claim: Claim, rule: ClaimRule, ours: float, bound: bool) -> bool:
    """Is ours as large as in the paper, within the tolerance? A bound may be anything that is larger."""
    if claim.size is None or claim.tolerance is None:
        return True
    if bound:
        return False
    if rule.is_ratio:
        return max(ours / claim.size, claim.size / ours) <= claim.tolerance
    return abs(ours - claim.size) <= claim.tolerance


class Results:
    """The records that come with the package, by bench, table, row and seed."""

    def __init__(self, records: Callable[[str], Sequence[Record]] | None = None) -> None:
        self._read = cache(records or _published)
        self._placed = cache(self._by_place)

    def record(self, name: Name, seed: int) -> Record | None:
        return self._placed(name.bench).get((name.table, name.row, seed))

    def seeds(self, bench: str) -> list[int]:
        """The seeds that some row of a benchmark has."""
        return sorted({record.seed for record in self._read(bench)})

    def value(self, name: Name, seed: int) -> Value | None:
        """A figure as its column shows it. A target that was not reached is a bound: the end of the run."""
        table, record = table_of(name), self.record(name, seed)
        if table is None or record is None or name.figure not in record.figures:
            return None
        column, number = table.figures()[name.figure], record.figures[name.figure]
        if number is not None:
            return Value(number * column.scale)
        length = record.figures.get(LENGTH)
        return Value(length, at_least=True) if column.is_time_to_target and length is not None else None

    def measured(self, bench: str, table: Table) -> Measured:
        """All figures of a table by row and seed, as they are recorded. Seeds on which something was chosen are not
        among them."""
        seeds = [seed for seed in self.seeds(bench) if seed >= benches[bench].first_seed]
        return {
            case.label: {
                seed: record.figures
                for seed in seeds
                if (record := self.record(Name("", case.label, table.name, bench), seed)) is not None
            }
            for case in table.cases
        }

    def stopped(self, bench: str, table: Table) -> tuple[int, int]:
        """How many runs of a table are recorded, and how many of them were stopped because their curve was flat."""
        records = [record for record in self._read(bench) if record.table == table.name]
        return len(records), sum(record.flat for record in records)

    def verdict(self, claim: Claim, paper: Paper | None = None) -> Verdict:
        """On a claim; with a paper, by the rows with its literal settings."""
        swapped = {} if paper is None else paper.literal
        names = [claim.in_full(name) for name in claim.read().names()] if claim.rule else []
        seeds = sorted({seed for name in names for seed in self.seeds(name.bench)})
        return judge(claim, lambda name, seed: self.value(_swapped(name, swapped), seed), seeds)

    def _by_place(self, bench: str) -> Mapping[tuple[str, str, int], Record]:
        return {(record.table, record.label, record.seed): record for record in self._read(bench)}


def _published(bench: str) -> Sequence[Record]:
    return Records(PUBLISHED / f"{bench}.json").all()


def _swapped(name: Name, rows: Mapping[str, str]) -> Name:
    return name._replace(row=rows.get(name.row, name.row))
