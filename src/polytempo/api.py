"""The Python interface: ``simulate`` runs a strategy and returns a Run with its figures, history and plots,
``compare`` runs several under the same conditions and returns a Comparison."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from polytempo.report.comparison import Comparison
from polytempo.report.run import Run
from polytempo.sim.comparing import experiments_to_compare
from polytempo.sim.directory import is_finished
from polytempo.sim.experiment import Experiment, make_experiment
from polytempo.sim.run import Progress, run_experiment
from polytempo.strategies import Strategy


def simulate(
    strategy: str | type[Strategy] | Strategy,
    *,
    out: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    objects: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Simulate one strategy. Settings are the options of ``polytempo run`` with underscores (``data``, ``clients``,
    ``partition``, ``devices``, ``lr``, ``seed`` ...), ``parameters`` the strategy's own. Strategy, data, model, loss,
    metric, partition and devices are names or Python objects (docs/guides/objects.md); ``label``, ``features`` and
    ``vocabulary`` say how data that are given as an object are read. With ``out``, the run is kept in that directory,
    together with its report."""
    experiment = make_experiment(strategy=strategy, **settings)
    return simulate_experiment(experiment, None if out is None else Path(out), progress, objects)


def simulate_experiment(
    experiment: Experiment,
    directory: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    objects: Mapping[str, Any] | None = None,
    reuse: bool = False,
) -> Run:
    """Simulate an experiment that is already put together. With ``reuse``, a finished run with the same settings that
    lies in the directory is taken as it is."""
    if reuse and directory is not None and is_finished(experiment, directory):
        return Run.load(directory)
    done = run_experiment(experiment, directory, progress, objects=objects)
    run = Run(**{one.name: getattr(done, one.name) for one in fields(done)})
    if directory is not None:
        from polytempo.report.page import write_report  # here, because matplotlib takes a while to import

        write_report([run], directory / "report.html", f"{experiment.strategy} on {experiment.data}")
    return run


def compare(
    strategies: Sequence[str],
    *,
    seeds: int = 3,
    out: str | Path | None = None,
    progress: Callable[[Progress], None] | None = None,
    begin: Callable[[str], None] | None = None,
    parameters: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Comparison:
    """Simulate several strategies under the same conditions, each with so many seeds from ``seed`` on. Settings are
    those of ``simulate``. A parameter ``name`` goes to every strategy that has it, ``strategy.name`` to that one.
    ``begin`` is told before each run what it is. With ``out``, the runs are kept below that directory with one report
    on all; runs that are finished there are not run again."""
    experiments = experiments_to_compare(strategies, seeds, parameters or {}, settings)
    directory = None if out is None else Path(out)
    runs: list[Run] = []
    for experiment in experiments:
        label = run_label(experiment)
        if begin is not None:
            begin(f"{label} ({len(runs) + 1} of {len(experiments)})")
        place = None if directory is None else directory / label
        runs.append(simulate_experiment(experiment, place, progress, reuse=True))
    comparison = Comparison(tuple(runs))
    if directory is not None:
        comparison.report(directory / "report.html", " · ".join(strategies))
    return comparison


def run_label(experiment: Experiment) -> str:
    """The name of a run's directory in a comparison."""
    return f"{fit_for_a_path(experiment.strategy)}-seed{experiment.seed}"


def fit_for_a_path(text: str) -> str:
    """A name fit for a directory."""
    return "".join(c if c.isalnum() or c in "+-_" else "-" for c in text).strip("-")[-60:]
