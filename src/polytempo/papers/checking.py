"""Are records true? Some runs are made again, and compared with theirs: bit by bit where versions and machine are the
same, within the noise of the seeds elsewhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import stdev
from typing import NamedTuple

from polytempo.papers.bench import Bench, Case, Table
from polytempo.papers.measuring import Means, experiment_of, measure, needed_runs
from polytempo.papers.records import Record, Records
from polytempo.sim.run import Progress

SAMPLE = 3
"""Runs that are made again."""
DEVIATIONS = 3
"""With other versions a figure may differ by so many standard deviations over the seeds of its row, ..."""
SLACK = 0.01
"""... and by this share of itself."""
FEWEST_SEEDS = 3


class Sampled(NamedTuple):
    """Where a record belongs."""

    table: Table
    case: Case
    record: Record


@dataclass(frozen=True)
class Checked:
    """What came of one run."""

    recorded: Record
    again: Record
    same_versions: bool
    beyond: Sequence[str]
    """What differs by more than it may."""
    compared: int
    """Figures that could be compared."""

    @property
    def holds(self) -> bool:
        return not self.beyond

    def line(self) -> str:
        """One line for people."""
        which = f"{self.recorded.table}: {self.recorded.label}, seed {self.recorded.seed}"
        if self.beyond:
            return f"{which}: {'; '.join(self.beyond)}"
        if self.same_versions:
            return f"{which}: the same to the last bit"
        return f"{which}: other versions, {self.compared} figures within the noise of the seeds"


def sample_of(bench: Bench, records: Records, random: Random, size: int = SAMPLE) -> list[Sampled]:
    """Some of the records that a benchmark has."""
    known = [
        Sampled(table, case, record)
        for table in bench.tables
        for seed, case in needed_runs(bench, table)
        if (record := records.record(table.name, experiment_of(table, case, seed))) is not None
    ]
    return random.sample(known, min(size, len(known)))


def check(
    sampled: Sampled, records: Records, means: Means, progress: Callable[[Progress], None] = lambda _: None
) -> Checked:
    """Make a run again, in means that must be empty, and compare it with its record."""
    table, case, recorded = sampled
    again = measure(table, case, recorded.seed, means, progress)
    lasting = [name for name, column in table.figures().items() if not column.varies and name in recorded.figures]
    if recorded.same_versions(again):
        beyond = (
            [] if recorded.digest in (None, again.digest) else [f"digest {again.digest}, recorded {recorded.digest}"]
        )
        beyond += [_said(recorded, again, name) for name in lasting if recorded.figures[name] != again.figures[name]]
        return Checked(recorded, again, True, beyond, len(lasting))
    others = [one for one in records.all() if (one.table, one.label) == (recorded.table, recorded.label)]
    allowed = {name: _noise(others, name, recorded.figures[name]) for name in lasting}
    beyond = [
        f"{_said(recorded, again, name)}, more than {noise:.3g} apart"
        for name, noise in allowed.items()
        if noise is not None and _apart(recorded.figures[name], again.figures[name]) > noise
    ]
    return Checked(recorded, again, False, beyond, sum(noise is not None for noise in allowed.values()))


def _noise(others: Sequence[Record], name: str, recorded: float | None) -> float | None:
    """By how much a figure may differ; None where there are too few seeds to tell."""
    values = [value for one in others if (value := one.figures.get(name)) is not None]
    if recorded is None or len(values) < FEWEST_SEEDS:
        return None
    return DEVIATIONS * stdev(values) + SLACK * abs(recorded)


def _apart(one: float | None, other: float | None) -> float:
    return float("inf") if one is None or other is None else abs(one - other)


def _said(recorded: Record, again: Record, name: str) -> str:
    return f"{name} {again.figures[name]}, recorded {recorded.figures[name]}"
