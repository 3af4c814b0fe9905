"""The Python interface: ``simulate`` runs a strategy and returns a Run with its figures, history and plots,
``compare`` runs several under the same conditions and returns a Comparison."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

from polytempo.core.errors import UserError
from polytempo.core.given import digest_of
from polytempo.report.comparison import Comparison
from polytempo.report.notebook import Show, live_progress, runs_line
from polytempo.report.run import Run
from polytempo.sim.comparing import experiments_to_compare
from polytempo.sim.directory import is_finished
from polytempo.sim.executors.side_by_side import PlannedRun, Report, side_by_side
from polytempo.sim.experiment import Experiment, make_experiment
from polytempo.sim.run import run_experiment
from polytempo.strategies import Strategy
from polytempo.track.callback import Callback
from polytempo.track.trackers import make_callbacks
from polytempo.track.watching import Callbacks


def simulate(
    strategy: str | type[Strategy] | Strategy,
    *,
    out: str | Path | None = None,
    progress: Show | Literal[False] | None = None,
    objects: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback | str] = (),
    track: str | Sequence[str] = (),
    **settings: Any,
) -> Run:
    """Simulate one strategy. Settings are the options of ``polytempo run`` with underscores (``data``, ``clients``,
    ``partition``, ``devices``, ``lr``, ``seed`` ...), ``parameters`` the strategy's own. Strategy, data, model, loss,
    metric, partition and devices are names or Python objects (docs/guides/objects.md); ``label``, ``features`` and
    ``vocabulary`` say how data that are given as an object are read. With ``out``, the run is kept in that directory,
    together with its report. ``callbacks``, objects or import paths, are told of every update and
    evaluation, ``track`` names trackers that log them: tensorboard, mlflow, wandb. A notebook shows live progress,
    unless ``progress`` is False or a function that is told of it."""
    experiment = make_experiment(strategy=strategy, **settings)
    directory = None if out is None else Path(out)
    with _shown(progress) as begun:
        show = begun(experiment.strategy)
        return simulate_experiment(experiment, directory, show, objects, callbacks=make_callbacks(callbacks, track))


def simulate_experiment(
    experiment: Experiment,
    directory: Path | None = None,
    progress: Show | None = None,
    objects: Mapping[str, Any] | None = None,
    reuse: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Simulate an experiment that is already put together. With ``reuse``, a finished run with the same settings that
    lies in the directory is taken as it is, and callbacks are told nothing."""
    if reuse and directory is not None and is_finished(experiment, directory):
        return Run.load(directory)
    with Callbacks(callbacks) as watching:
        done = run_experiment(experiment, directory, progress, objects=objects, watcher=watching)
        run = Run(**{one.name: getattr(done, one.name) for one in fields(done)})
        if directory is not None:
            from polytempo.report.page import write_report  # here, because matplotlib takes a while to import

            write_report([run], directory / "report.html", f"{experiment.strategy} on {experiment.data}")
        watching.end(run)
    return run


def compare(
    strategies: Sequence[str | type[Strategy] | Strategy],
    *,
    seeds: int = 3,
    out: str | Path | None = None,
    progress: Show | Literal[False] | None = None,
    begin: Callable[[str], None] | None = None,
    jobs: int = 1,
    finished: Report | None = None,
    callbacks: Sequence[Callback | str] = (),
    track: str | Sequence[str] = (),
    parameters: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Comparison:
    """Simulate several strategies, names, classes or instances, under the same conditions, each with so many seeds from
    ``seed`` on. Settings are those of ``simulate``. A parameter ``name`` goes to every strategy that has it,
    ``strategy.name`` to that one.
    ``begin`` is told before each run what it is. With ``out``, the runs are kept below that directory with one report
    on all; runs that are finished there are not run again, and callbacks are told nothing of them. A callback that is
    given by its import path is made for each run. With ``jobs`` above 1 so many runs go on side by side, in processes
    or, with an executor on Ray, as its tasks; ``finished`` is told how many are."""
    experiments = experiments_to_compare(strategies, seeds, parameters or {}, settings)
    directory = None if out is None else Path(out)
    labels = _labels(strategies, experiments, seeds)
    if jobs > 1:
        if directory is None:
            raise UserError(f"jobs is {jobs}, and runs side by side lie in directories. Expected out, too.")
        with runs_line(finished or (None if progress is None else False), "compare") as tell:
            _make_side_by_side(experiments, [directory / label for label in labels], jobs, tell, callbacks, track)
    runs: list[Run] = []
    with _shown(progress) as begun:
        for label, experiment in zip(labels, experiments, strict=True):
            numbered = f"{label} ({len(runs) + 1} of {len(experiments)})"
            if begin is not None:
                begin(numbered)
            place, told = None if directory is None else directory / label, make_callbacks(callbacks, track)
            runs.append(simulate_experiment(experiment, place, begun(numbered), reuse=True, callbacks=told))
    comparison = Comparison(tuple(runs))
    if directory is not None:
        comparison.report(directory / "report.html")
    return comparison


def _make_side_by_side(
    experiments: Sequence[Experiment],
    places: Sequence[Path],
    jobs: int,
    finished: Report | None,
    callbacks: Sequence[Callback | str],
    track: str | Sequence[str],
) -> None:
    """Leave finished runs in their directories."""
    if not all(isinstance(one, str) for one in callbacks):
        raise UserError(f"jobs is {jobs}, and other processes have no callbacks of this one. Expected import paths.")
    tasks = [
        PlannedRun(place.name, experiment, place, (tuple(callbacks), track))
        for place, experiment in zip(places, experiments, strict=True)
        if not is_finished(experiment, place)
    ]
    tell = finished or (lambda *_: None)
    done = len(experiments) - len(tasks)
    tell(done, len(experiments), "")
    for place, _ in side_by_side(_make_one, tasks, jobs):
        done += 1
        tell(done, len(experiments), tasks[place].label)


def _make_one(
    experiment: Experiment, directory: Path, callbacks: Sequence[Callback | str], track: str | Sequence[str]
) -> None:
    simulate_experiment(experiment, directory, callbacks=make_callbacks(callbacks, track))


def _labels(
    strategies: Sequence[str | type[Strategy] | Strategy], experiments: Sequence[Experiment], seeds: int
) -> list[str]:
    """The names of their directories in a comparison: the same ones whatever is compared beside them. Instances are
    told apart by their parameters."""
    given = [strategy for strategy in strategies for _ in range(seeds)]
    labels = []
    for strategy, experiment in zip(given, experiments, strict=True):
        own = f"-{digest_of(experiment.parameters)[:8]}" if isinstance(strategy, Strategy) else ""
        labels.append(f"{fit_for_a_path(experiment.strategy)}{own}-seed{experiment.seed}")
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise UserError(f"Two strategies would have the directory {twice[0]}. Give their classes different names.")
    return labels


def fit_for_a_path(text: str) -> str:
    """A name fit for a directory."""
    return "".join(c if c.isalnum() or c in "+-_" else "-" for c in text).strip("-")[-60:]


@contextmanager
def _shown(progress: Show | Literal[False] | None) -> Iterator[Callable[[str], Show | None]]:
    """What is told of the progress of a run with this label: what was given or, in a notebook, a line of its own."""
    if progress is None:
        with live_progress() as begin:
            yield begin
    else:
        yield lambda label: progress or None
