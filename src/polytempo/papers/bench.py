"""A benchmark is what a paper shows, as experiments: tables whose rows are experiments and whose columns are figures,
the paper's numbers beside ours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from polytempo.core.errors import UserError
from polytempo.core.registry import Registry
from polytempo.report.run import Run
from polytempo_client.imports import unknown

benches: Registry["Bench"] = Registry("benchmark")
FLAT_SHARE = 5
"""A curve is flat that has not risen for a fifth of its run."""


@dataclass(frozen=True)
class Column:
    """One column of a table: a figure of a run, and how the paper gives it."""

    name: str
    title: str
    scale: float = 1.0
    digits: int = 2
    published: bool = True
    """Does the paper give it in this form?"""
    relative: bool = False
    """Divided by the figure of the row's base, seed by seed; for what can only be compared as a ratio."""
    compare: Callable[[Run, Run], float | None] | None = None
    """Computed from a run and that of its base with the same seed, in place of a figure of the run alone."""
    of: Callable[[Run], float | None] | None = None
    """Computed from a run, in place of a figure that its result has."""
    base: str | None = None
    """The label of the row by which figures of this column are divided, or that they are compared with, in place of the
    row's base."""
    missing: str = "–"
    """What stands where no run has it."""
    varies: bool = False
    """Does it differ when a run is made again, because it is real time?"""

    @property
    def is_time_to_target(self) -> bool:
        """Is it the virtual time to the target, which a run may not reach?"""
        return self.name == "time_to_target"


@dataclass(frozen=True)
class Case:
    """One row."""

    label: str
    settings: Mapping[str, Any]
    paper: Mapping[str, float | None] = field(default_factory=dict)
    """The paper's figures by name, as far as it gives them; None where it says that the target was not reached."""
    base: str | None = None
    """The label of the row by which relative figures are divided, and that runs are compared with."""
    rival: bool = False
    """Is it one of those of which the best is picked on the benchmark's choosing seed?"""


@dataclass(frozen=True)
class Table:
    """Methods in one world."""

    name: str
    title: str
    notes: str
    """What is not as in the paper."""
    settings: Mapping[str, Any]
    """Of all rows."""
    cases: Sequence[Case]
    columns: Sequence[Column]
    kept: Sequence[Column] = ()
    """Figures that are recorded and stand in no column: claims are about them."""
    block: str = ""
    """Where the table stands in the overview of a benchmark that has one: the title of the block, ..."""
    heading: str = ""
    """... and of its column there."""

    def figures(self) -> Mapping[str, Column]:
        """What is recorded of a run, by name: the figures of the columns, before they are divided, and those kept."""
        known: dict[str, Column] = {}
        for column in sorted((*self.columns, *self.kept), key=lambda column: column.relative):
            known.setdefault(column.name, replace(column, relative=False))
        return known

    def base_of(self, case: "Case", column: Column) -> "Case | None":
        """The row by which a row's figure in this column is divided, or that it is compared with."""
        label = column.base or case.base
        return next((other for other in self.cases if other.label == label), None)


@dataclass(frozen=True)
class Bench:
    """What a paper shows in one place."""

    name: str
    title: str
    notes: str
    """What is as in the paper."""
    tables: Sequence[Table]
    quick: Mapping[str, Any]
    """Settings that replace those of the first tables in the quick form, ..."""
    quick_tables: int = 1
    """... which are this many."""
    overview: Column | None = None
    """A figure of all tables side by side: rows by their labels, one column per table."""
    seeds: int = 3
    """Runs per row: with the seeds from ..."""
    first_seed: int = 0
    """... this one on. Above 0 where settings were chosen on the seeds below."""

    recorded: bool = True
    """Are its runs recorded? All but those of quick forms are."""
    choosing_seed: int | None = None
    """Where the benchmark shows whether Concerto keeps its promises: the seed, none of those above, on which its best
    rival in each table is picked."""

    def __post_init__(self) -> None:
        if self.choosing_seed is not None and self.choosing_seed in self.all_seeds():
            raise ValueError(f"The choosing seed {self.choosing_seed} of {self.name} is one of those that it reports.")

    def all_seeds(self) -> range:
        return range(self.first_seed, self.first_seed + self.seeds)


def part_of(bench: Bench, tables: Sequence[str], rows: Sequence[str]) -> Bench:
    """The benchmark with only these tables and only these rows, by name and label, and the rows that these are
    compared with; none named means all."""
    _check_known(f"table of {bench.name}", tables, [table.name for table in bench.tables])
    _check_known(f"row of {bench.name}", rows, [case.label for table in bench.tables for case in table.cases])
    kept = [
        replace(table, cases=_rows_of(table, rows) if rows else table.cases)
        for table in bench.tables
        if not tables or table.name in tables
    ]
    there = [table for table in kept if table.cases]
    if not there:
        raise UserError(
            f"{' and '.join(tables)} of {bench.name} {'has' if len(tables) == 1 else 'have'} no row "
            f"{' or '.join(rows)}. Leave --only out, or name another row."
        )
    return replace(bench, tables=there)


def rivals_of(table: Table) -> Table:
    """The table with its rivals alone."""
    return replace(table, cases=[case for case in table.cases if case.rival])


def quick_form(bench: Bench) -> Bench:
    """The first tables alone, with the settings that make them quick, and without the paper's figures, which are for
    other data."""
    changed = ", ".join(f"{name} = {value}" for name, value in bench.quick.items())
    tables = [
        replace(
            table,
            title=f"{table.title}, but quick",
            notes="",
            settings={**table.settings, **bench.quick},
            cases=[replace(case, paper={}) for case in table.cases],
        )
        for table in bench.tables[: bench.quick_tables]
    ]
    return replace(
        bench,
        name=f"{bench.name}-quick",
        title=f"{bench.title}, quick form",
        notes=f"To see that it runs, not to compare with the paper: {changed} in place of what the titles say.",
        tables=tables,
        recorded=False,
        choosing_seed=None,
    )


def until_flat(updates: int, eval_every: int) -> dict[str, int]:
    """The settings of a run that stops when its used accuracy has not been better for a fifth of its length."""
    return {"updates": updates, "eval_every": eval_every, "patience": updates // FLAT_SHARE // eval_every}


def _rows_of(table: Table, labels: Sequence[str]) -> list[Case]:
    columns = (*table.columns, *table.kept)
    compared = [column for column in columns if column.relative or column.compare is not None]
    bases = {column.base or case.base for case in table.cases if case.label in labels for column in compared}
    return [case for case in table.cases if case.label in labels or case.label in bases]


def _check_known(kind: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise UserError(unknown(kind, name, dict.fromkeys(known)))
