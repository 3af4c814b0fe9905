"""Run a sweep: every trial with every seed, in one process or several. Each run has a directory of its own, so that
a sweep goes on where it was stopped, and finished runs are taken as they are."""

import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from polytempo.core.errors import DivergenceError, UserError
from polytempo.report.facts.scales import common_scale
from polytempo.report.notebook import runs_line
from polytempo.report.run import Run
from polytempo.sim.directory import is_finished, write_json
from polytempo.sim.executors.side_by_side import PlannedRun, Report, side_by_side
from polytempo.sim.experiment import Experiment, make_experiment
from polytempo.sim.run import run_experiment
from polytempo.strategies import Strategy
from polytempo.sweeps.result import Sweep, Trial
from polytempo.sweeps.search import searched
from polytempo.sweeps.space import (
    Assigned,
    Range,
    checked_grid,
    checked_ranges,
    combinations,
    each_value,
    experiment_with,
    shown_name,
    value_text,
)

VALIDATION_SHARE = 0.2
"""Where the user does not say."""
FIGURES = "sweep.json"


@dataclass(frozen=True)
class SweepPlan:
    """What to vary, with which seeds, and how to run it."""

    grid: Mapping[str, Sequence[Any]]
    ranges: Mapping[str, Range]
    seeds: int
    jobs: int
    trials: int | None
    """How many a search makes; None for all of the grid."""


def sweep(
    strategy: str | type[Strategy] | Strategy,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    ranges: Mapping[str, Any] | None = None,
    search: Literal["optuna"] | None = None,
    trials: int | None = None,
    seeds: int = 5,
    jobs: int = 1,
    out: str | Path | None = None,
    progress: Report | Literal[False] | None = None,
    **settings: Any,
) -> Sweep:
    """Try every combination of the grid's values with several seeds, and choose the best by validation rows. Names are
    those of settings and of the strategy's parameters; other settings are those of ``simulate``. ``search="optuna"``
    makes ``trials`` trials instead, from ``ranges``, ``(low, high)`` or ``(low, high, "log")``, and the lists of
    the grid. ``jobs`` is the number of processes. With ``out``, the runs are kept there, and the same call goes on. A
    notebook shows live progress, unless ``progress`` is False or a function that is told of it."""
    base = make_experiment(strategy=strategy, **settings)
    plan = make_plan(base, grid or {}, ranges or {}, search, trials, seeds, jobs)
    with runs_line(progress, base.strategy) as tell, _place(out) as directory:
        return run_sweep(base, plan, directory, tell)


@contextmanager
def _place(out: str | Path | None) -> Iterator[Path]:
    """Where the runs are kept, or a directory that is gone at the end."""
    if out is not None:
        yield Path(out)
        return
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def make_plan(
    base: Experiment,
    grid: Mapping[str, Sequence[Any]],
    ranges: Mapping[str, Any],
    search: str | None,
    trials: int | None,
    seeds: int,
    jobs: int,
) -> SweepPlan:
    """Check everything that can be checked before the first run."""
    for name, count in (("seeds", seeds), ("jobs", jobs), ("trials", 1 if trials is None else trials)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UserError(f"{name} is {count!r}. Expected a whole number of at least 1.")
    if search not in (None, "optuna"):
        raise UserError(f"search is {search!r}. Expected optuna, or none for the whole grid.")
    if search is None and (ranges or trials is not None):
        raise UserError("Ranges and trials are for a search. Give search too (--search optuna), or lists of values.")
    if search is not None and trials is None:
        raise UserError("A search needs the number of trials (--trials N).")
    if not grid and not ranges:
        raise UserError("Nothing is varied. Give a grid, such as --grid lr=0.01,0.05.")
    plan = SweepPlan(checked_grid(base, grid), checked_ranges(base, ranges), seeds, jobs, trials)
    both = plan.grid.keys() & plan.ranges.keys()
    if both:
        raise UserError(f"{shown_name(min(both))} has a list of values and a range. Give one of them.")
    if trials is not None and base.validation_share == 0 and "validation_share" in base.model_fields_set:
        raise UserError("A search chooses by validation rows. Give a validation_share above 0, such as 0.2.")
    for assigned in each_value(plan.grid, plan.ranges):
        experiment_with(base, assigned, base.seed)
    return plan


def run_sweep(base: Experiment, plan: SweepPlan, directory: Path, progress: Report | None = None) -> Sweep:
    """Run what is not finished yet, and leave the figures as sweep.json."""
    if "validation_share" not in base.model_fields_set:
        base = base.model_copy(update={"validation_share": VALIDATION_SHARE})
    tell = progress or (lambda done, total, label: None)
    if plan.trials is None:
        trials = _all_of(base, plan, combinations(plan.grid), directory, tell)
    else:
        trials = _by_search(base, plan, plan.trials, directory, tell)
    if all(trial.failure for trial in trials):
        raise UserError(f"No trial of the sweep ended. {trials[0].failure}")
    found = Sweep(base.strategy, (*plan.grid, *plan.ranges), tuple(_seeds(base, plan)), tuple(trials))
    write_json(directory / FIGURES, found.figures())
    return found


def _by_search(base: Experiment, plan: SweepPlan, trials: int, directory: Path, tell: Report) -> list[Trial]:
    """One trial after the other, so that a search that goes on finds the same ones."""
    done: dict[str, Trial] = {}

    def tried(assigned: Assigned, number: int) -> float:
        before = number * plan.seeds

        def one_of(finished: int, _: int, label: str) -> None:
            tell(before + finished, trials * plan.seeds, label)

        (trial,) = _all_of(base, plan, [assigned], directory, one_of)
        done[trial.words] = trial
        mean = trial.validation.mean
        return mean if common_scale(trial.runs).higher_is_better else -mean

    searched(plan.grid, plan.ranges, trials, base.seed, tried)
    return list(done.values())


def _all_of(
    base: Experiment, plan: SweepPlan, choices: Sequence[Assigned], directory: Path, tell: Report
) -> list[Trial]:
    """These trials with all seeds."""
    trials = [
        [
            PlannedRun(
                _words(assigned), experiment_with(base, assigned, seed), directory / _label(assigned) / f"seed-{seed}"
            )
            for seed in _seeds(base, plan)
        ]
        for assigned in choices
    ]
    tasks = [task for trial in trials for task in trial]
    open_tasks = [task for task in tasks if not is_finished(task.experiment, task.directory)]
    failures: dict[Path, str] = {}
    finished = len(tasks) - len(open_tasks)
    tell(finished, len(tasks), "")
    for place, failure in side_by_side(_finish, open_tasks, plan.jobs):
        finished += 1
        if failure:
            failures[open_tasks[place].directory] = failure
        tell(finished, len(tasks), open_tasks[place].label)
    return [
        Trial(assigned, tuple(_loaded(trial)), next((failures[d] for d in _directories(trial) if d in failures), ""))
        for assigned, trial in zip(choices, trials, strict=True)
    ]


def _directories(trial: Sequence[PlannedRun]) -> list[Path]:
    return [task.directory for task in trial]


def _finish(experiment: Experiment, directory: Path) -> str:
    """One run, in whatever process; why training diverged, if it did."""
    try:
        run_experiment(experiment, directory)
    except DivergenceError as error:
        return str(error)
    return ""


def _loaded(tasks: Sequence[PlannedRun]) -> list[Run]:
    return [Run.load(task.directory) for task in tasks if is_finished(task.experiment, task.directory)]


def _seeds(base: Experiment, plan: SweepPlan) -> range:
    return range(base.seed, base.seed + plan.seeds)


def _words(assigned: Assigned) -> str:
    return ", ".join(f"{shown_name(name)}={value_text(value)}" for name, value in assigned.items())


def _label(assigned: Assigned) -> str:
    """The trial's directory: the same in whatever order its names are given. What a file name cannot hold is told
    apart by a hash."""
    text = _words(dict(sorted(assigned.items())))
    name = re.sub(r"[^\w+.=,-]+", "-", text.replace(", ", ","))[:80]
    return name if name == text.replace(", ", ",") else f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
