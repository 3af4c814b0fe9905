"""Running a table. Finished runs are kept under what decides them: a benchmark that was cut off goes on where it was,
and a row that stands in several tables is run once. A run that is recorded is not needed any more."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from polytempo.papers.bench import Bench, Case, Column, Table
from polytempo.papers.records import Figures, Measured, Record, Records, record_of, settings_hash
from polytempo.report.run import Run
from polytempo.sim.directory import MODELS, is_finished
from polytempo.sim.executors.side_by_side import PlannedRun, side_by_side
from polytempo.sim.experiment import Experiment, make_experiment
from polytempo.sim.run import Progress, run_experiment
from polytempo_client.disk.locks import locked


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
    """Add what is missing of a table to the records, one seed after the other. Runs that are not kept yet are made. A
    record that lacks a figure, which its table has got since, is made anew if its run is kept."""
    needed = needed_runs(bench, table)
    if means.jobs > 1:
        _make_side_by_side(table, needed, records, means, begin)
    for number, (seed, case) in enumerate(needed, 1):
        if not _lacks(table, case, seed, records, means):
            continue
        begin(f"{table.name}: {case.label}, seed {seed} ({number} of {len(needed)})")
        records.add(measure(table, case, seed, means, progress))


def measure(table: Table, case: Case, seed: int, means: Means, progress: Callable[[Progress], None]) -> Record:
    """The record of one run, which is made, like those that it is compared with, if it is not kept."""
    experiment = experiment_of(table, case, seed, means)
    run = _run(experiment, means, progress)
    bases = {
        base.label: _run(experiment_of(table, base, seed, means), means, progress)
        for base in _compared_with(table, case)
    }
    return record_of(table.name, case.label, experiment, run, _figures(table, case, run, bases))


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
            figures = records.figures(table.name, experiment_of(table, case, seed))
            if figures is not None:
                found[case.label][seed] = figures
    return found


def kept_runs(bench: Bench, table: Table, means: Means) -> list[Run]:
    """The runs of a table that are kept, row by row."""
    experiments = [experiment_of(table, case, seed, means) for case in table.cases for seed in bench.all_seeds()]
    return [Run.load(directory) for e in experiments if is_finished(e, directory := _directory(e, means))]


def experiment_of(table: Table, case: Case, seed: int, means: Means | None = None) -> Experiment:
    """What a row is with one seed."""
    given = {} if means is None else {"data_dir": means.data_dir, "executor": means.executor}
    return make_experiment(**{**table.settings, **case.settings, "seed": seed, **given})


def _lacks(table: Table, case: Case, seed: int, records: Records, means: Means) -> bool:
    """Is there no record of a run, or one that its kept runs can complete?"""
    known = records.figures(table.name, experiment_of(table, case, seed))
    return known is None or (not _figure_names(table, case) <= known.keys() and _is_kept(table, case, seed, means))


def _make_side_by_side(
    table: Table,
    needed: Iterable[tuple[int, Case]],
    records: Records,
    means: Means,
    begin: Callable[[str], None],
) -> None:
    """Make the runs of a table that are neither recorded nor kept, each with the rows that it is compared with."""
    tasks: dict[Path, PlannedRun] = {}
    for seed, case in needed:
        if not _lacks(table, case, seed, records, means):
            continue
        for one in (case, *_compared_with(table, case)):
            experiment = experiment_of(table, one, seed, means)
            directory = _directory(experiment, means)
            if not is_finished(experiment, directory):
                tasks[directory] = PlannedRun(f"{one.label}, seed {seed}", experiment, directory)
    ordered = list(tasks.values())
    begin(f"{table.name}: {len(ordered)} runs")
    for done, (place, _) in enumerate(side_by_side(_make, ordered, means.jobs), 1):
        begin(f"{table.name}: {done} of {len(ordered)} runs finished, the last one {ordered[place].label}")


def _make(experiment: Experiment, directory: Path, progress: Callable[[Progress], None] | None = None) -> None:
    """Make a run, unless it is there; one that another process is making is waited for. The models of its clients,
    which no table needs, would fill the disk."""
    locks = directory.parents[1] / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with locked(locks / directory.name, mode=0o644):
        if not is_finished(experiment, directory):
            run_experiment(experiment, directory, progress)
            for models in MODELS.values():
                (directory / models).unlink(missing_ok=True)


def _run(experiment: Experiment, means: Means, progress: Callable[[Progress], None]) -> Run:
    directory = _directory(experiment, means)
    _make(experiment, directory, progress)
    return Run.load(directory)


def _directory(experiment: Experiment, means: Means) -> Path:
    e = experiment
    return means.runs / f"{e.strategy}-{e.data}-{e.model}-seed{e.seed}-{settings_hash(e)}"


def _is_kept(table: Table, case: Case, seed: int, means: Means) -> bool:
    """Is the run there, and are those that it is compared with?"""
    experiments = [experiment_of(table, row, seed, means) for row in (case, *_compared_with(table, case))]
    return all(is_finished(experiment, _directory(experiment, means)) for experiment in experiments)


def _figure_names(table: Table, case: Case) -> set[str]:
    """What is recorded of a run of this row. Figures that compare are left out where there is no base."""
    columns = table.figures().items()
    return {name for name, column in columns if column.compare is None or table.base_of(case, column) is not None}


def _compared_with(table: Table, case: Case) -> list[Case]:
    """The rows that a row is compared with, as far as there are any."""
    compared = [column for column in table.figures().values() if column.compare is not None]
    bases = [table.base_of(case, column) for column in compared]
    return list({base.label: base for base in bases if base is not None}.values())


def _figures(table: Table, case: Case, run: Run, bases: Mapping[str, Run]) -> Figures:
    names = _figure_names(table, case)
    return {
        name: _figure(column, run, table.base_of(case, column), bases)
        for name, column in table.figures().items()
        if name in names
    }


def _figure(column: Column, run: Run, base: Case | None, bases: Mapping[str, Run]) -> float | None:
    if column.compare is not None and base is not None:
        return column.compare(run, bases[base.label])
    found: float | None = column.of(run) if column.of else run.result.get(column.name)
    return found
