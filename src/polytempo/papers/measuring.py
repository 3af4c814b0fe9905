"""Running a table. Finished runs are kept under what decides them: a benchmark that was cut off goes on where it was,
and a row that stands in several tables is run once. A run that is recorded is not needed any more."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from polytempo.papers.bench import Bench, Case, Table
from polytempo.papers.records import Figures, Measured, Records, record_of, settings_hash
from polytempo.report.run import Run
from polytempo.sim.directory import is_finished
from polytempo.sim.experiment import Experiment, make_experiment
from polytempo.sim.run import Progress, run_experiment


class Folders(NamedTuple):
    """Where runs are kept and data sets lie."""

    runs: Path
    data_dir: Path | None


def measure_table(
    bench: Bench,
    table: Table,
    records: Records,
    folders: Folders,
    begin: Callable[[str], None],
    progress: Callable[[Progress], None],
) -> None:
    """Add what is missing of a table to the records, one seed after the other. Runs that are not kept yet are made."""
    needed = needed_runs(bench, table)
    for number, (seed, case) in enumerate(needed, 1):
        experiment = _experiment(table, case, seed, folders)
        if records.figures(table.name, experiment) is not None:
            continue
        begin(f"{table.name}: {case.label}, seed {seed} ({number} of {len(needed)})")
        run, base = _run(experiment, folders, progress), _base_of(table, case)
        of_base = None if base is None else _run(_experiment(table, base, seed, folders), folders, progress)
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


def kept_runs(bench: Bench, table: Table, folders: Folders) -> list[Run]:
    """The runs of a table that are kept, row by row."""
    experiments = [_experiment(table, case, seed, folders) for case in table.cases for seed in bench.all_seeds()]
    return [Run.load(directory) for e in experiments if is_finished(e, directory := _directory(e, folders))]


def _experiment(table: Table, case: Case, seed: int, folders: Folders | None = None) -> Experiment:
    data_dir = None if folders is None else folders.data_dir
    return make_experiment(**{**table.settings, **case.settings, "seed": seed, "data_dir": data_dir})


def _run(experiment: Experiment, folders: Folders, progress: Callable[[Progress], None]) -> Run:
    directory = _directory(experiment, folders)
    if not is_finished(experiment, directory):
        run_experiment(experiment, directory, progress)
    return Run.load(directory)


def _directory(experiment: Experiment, folders: Folders) -> Path:
    e = experiment
    return folders.runs / f"{e.strategy}-{e.data}-{e.model}-seed{e.seed}-{settings_hash(e)}"


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
