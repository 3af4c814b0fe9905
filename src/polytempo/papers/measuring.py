"""Running a table. Finished runs are kept under what decides them: a benchmark that was cut off goes on where it was,
and a row that stands in several tables is run once. A run that is recorded is not needed any more."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from polytempo.papers.bench import Bench, Case, Table
from polytempo.papers.records import Figures, Measured, Records, record_of, settings_hash
from polytempo.report.run import Run
from polytempo.sim.directory import is_finished
from polytempo.sim.executors.side_by_side import Task, side_by_side
from polytempo.sim.experiment import Experiment, make_experiment
from polytempo.sim.run import Progress, run_experiment


class Means(NamedTuple):
    """How runs are made: where they are kept, where data sets lie."""

    runs: Path
    data_dir: Path | None
    jobs: int = 1
    """Runs that are made side by side, ..."""
    executor: str = "threads"
    """... and on which executor's machines."""


def measure_table(
    bench: Bench,
    table: Table,
    records: Records,
    means: Means,
    begin: Callable[[str], None],
    progress: Callable[[Progress], None],
) -> None:
    """Add what is missing of a table to the records, one seed after the other. Runs that are not kept yet are made."""
    needed = needed_runs(bench, table)
    if means.jobs > 1:
        _make_side_by_side(table, needed, records, means, begin)
    for number, (seed, case) in enumerate(needed, 1):
        experiment = _experiment(table, case, seed, means)
        if records.figures(table.name, experiment) is not None:
            continue
        begin(f"{table.name}: {case.label}, seed {seed} ({number} of {len(needed)})")
        run, base = _run(experiment, means, progress), _base_of(table, case)
        of_base = None if base is None else _run(_experiment(table, base, seed, means), means, progress)
        records.add(record_of(table.name, case.label, experiment, run, _figures(table, run, of_base)))


def needed_runs(bench: Bench, table: Table) -> list[tuple[int, Case]]:
    """Seeds and rows in the order in which they are measured. On the choosing seed only rivals are; the row that they
    are compared with is run as well, but not recorded."""
    choosing = [] if bench.choosing_seed is None else [bench.choosing_seed]
    return [(seed, case) for seed in choosing for case in table.cases if case.rival] + [
        (seed, case) for seed in bench.all_seeds() for case in table.cases
    ]


def measured(table: Table, seeds: Iterable[int], records: Records) -> Measured:
    """What is recorded of a table with these seeds."""
    found: dict[str, dict[int, Figures]] = {case.label: {} for case in table.cases}
    for seed in seeds:
        for case in table.cases:
            figures = records.figures(table.name, _experiment(table, case, seed))
            if figures is not None:
                found[case.label][seed] = figures
    return found


def kept_runs(bench: Bench, table: Table, means: Means) -> list[Run]:
    """The runs of a table that are kept, row by row."""
    experiments = [_experiment(table, case, seed, means) for case in table.cases for seed in bench.all_seeds()]
    return [Run.load(directory) for e in experiments if is_finished(e, directory := _directory(e, means))]


def _experiment(table: Table, case: Case, seed: int, means: Means | None = None) -> Experiment:
    given = {} if means is None else {"data_dir": means.data_dir, "executor": means.executor}
    return make_experiment(**{**table.settings, **case.settings, "seed": seed, **given})


def _make_side_by_side(
    table: Table,
    needed: Iterable[tuple[int, Case]],
    records: Records,
    means: Means,
    begin: Callable[[str], None],
) -> None:
    """Make the runs of a table that are neither recorded nor kept, each with the row that it is compared with."""
    tasks: dict[Path, Task] = {}
    for seed, case in needed:
        if records.figures(table.name, _experiment(table, case, seed, means)) is not None:
            continue
        for one in filter(None, (case, _base_of(table, case))):
            experiment = _experiment(table, one, seed, means)
            directory = _directory(experiment, means)
            if not is_finished(experiment, directory):
                tasks[directory] = Task(f"{one.label}, seed {seed}", experiment, directory)
    ordered = list(tasks.values())
    begin(f"{table.name}: {len(ordered)} runs")
    for done, (place, _) in enumerate(side_by_side(_make_one, ordered, means.jobs), 1):
        begin(f"{table.name}: {done} of {len(ordered)} runs finished, the last one {ordered[place].label}")


def _make_one(experiment: Experiment, directory: Path) -> None:
    run_experiment(experiment, directory)


def _run(experiment: Experiment, means: Means, progress: Callable[[Progress], None]) -> Run:
    directory = _directory(experiment, means)
    if not is_finished(experiment, directory):
        run_experiment(experiment, directory, progress)
    return Run.load(directory)


def _directory(experiment: Experiment, means: Means) -> Path:
    e = experiment
    return means.runs / f"{e.strategy}-{e.data}-{e.model}-seed{e.seed}-{settings_hash(e)}"


def _base_of(table: Table, case: Case) -> Case | None:
    """The row that a row is compared with, if a column does so."""
    compares = any(column.compare is not None for column in table.columns)
    return next((other for other in table.cases if compares and other.label == case.base), None)


def _figures(table: Table, run: Run, base: Run | None) -> Figures:
    """Figures that compare are left out where there is no base."""
    figures: dict[str, float | None] = {}
    for column in table.columns:
        if column.compare is None:
            figures[column.name] = column.of(run) if column.of else run.result.get(column.name)
        elif base is not None:
            figures[column.name] = column.compare(run, base)
    return figures
