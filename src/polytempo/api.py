"""The Python interface: ``simulate`` runs a strategy and returns a Run with its figures, history and plots."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from polytempo.report.notebook import live_progress
from polytempo.report.run import Run
from polytempo.sim.directory import is_finished
from polytempo.sim.experiment import Experiment, make_experiment
from polytempo.sim.run import Progress, run_experiment
from polytempo.track.callback import Callback
from polytempo.track.trackers import make_trackers
from polytempo.track.watching import Callbacks


def simulate(
    strategy: str,
    *,
    out: str | Path | None = None,
    progress: Callable[[Progress], None] | Literal[False] | None = None,
    objects: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callback] = (),
    track: str | Sequence[str] = (),
    **settings: Any,
) -> Run:
    """Simulate one strategy. Settings are the options of ``polytempo run`` with underscores (``data``, ``clients``,
    ``partition``, ``devices``, ``lr``, ``seed`` ...), ``parameters`` the strategy's own. With ``out``, the run is
    kept in that directory, together with its report. ``callbacks`` are told of every update and evaluation, ``track``
    names trackers that log them: tensorboard, mlflow, wandb. A notebook shows live progress, unless ``progress`` is
    False or a function that is told of it."""
    experiment = make_experiment(strategy=strategy, **settings)
    told = [*callbacks, *make_trackers([track] if isinstance(track, str) else track)]
    directory = None if out is None else Path(out)
    if progress is not None:
        return simulate_experiment(experiment, directory, progress or None, objects, callbacks=told)
    with live_progress(experiment.strategy) as shown:
        return simulate_experiment(experiment, directory, shown, objects, callbacks=told)


def simulate_experiment(
    experiment: Experiment,
    directory: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
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
        run = Run(done.config, done.result, done.history, done.splits, done.regroupings, done.similarity, done.used)
        if directory is not None:
            from polytempo.report.page import write_report  # here, because matplotlib takes a while to import

            write_report([run], directory / "report.html", f"{experiment.strategy} on {experiment.data}")
        watching.end(run)
    return run
