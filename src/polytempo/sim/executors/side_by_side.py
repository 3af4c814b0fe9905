"""Whole runs side by side: in processes of this machine, or as tasks of a Ray cluster. Each run has a directory of its
own, so that one that is cut off goes on there."""

import os
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polytempo.core.errors import UserError
from polytempo.core.threads import cores
from polytempo.sim.executors.cluster import connected
from polytempo.sim.experiment import Experiment

Report = Callable[[int, int, str], None]
"""(runs finished, runs in all, what the last one was)"""
LETTING_GO = 10.0
"""Seconds in which tasks that are told to stop may save how far they are."""


@dataclass(frozen=True)
class PlannedRun:
    """A run to make: ``make(experiment, directory, *more)``, which lies in the directory in the end."""

    label: str
    experiment: Experiment
    directory: Path
    more: tuple[Any, ...] = ()


Make = Callable[..., Any]


def side_by_side(make: Make, tasks: Sequence[PlannedRun], jobs: int) -> Iterator[tuple[int, Any]]:
    """Make these runs, so many at once, on the machines of their executor: the place of each among the tasks and what
    ``make`` says of it, as they end. One at a time, they are made in this process."""
    if jobs == 1 or len(tasks) < 2:
        for place, task in enumerate(tasks):
            yield place, make(task.experiment, task.directory, *task.more)
        return
    executor = tasks[0].experiment.executor
    if executor == "threads":
        yield from _in_processes(make, tasks, jobs)
    else:
        yield from _on_a_cluster(make, tasks, jobs, executor)


def _in_processes(make: Make, tasks: Sequence[PlannedRun], jobs: int) -> Iterator[tuple[int, Any]]:
    from joblib import Parallel, delayed  # here, because only this needs it

    workers = max(1, cores() // jobs)
    parallel = Parallel(n_jobs=min(jobs, len(tasks)), batch_size=1, return_as="generator_unordered")
    yield from parallel(delayed(_numbered)(place, make, task, workers) for place, task in enumerate(tasks))


def _numbered(place: int, make: Make, task: PlannedRun, workers: int) -> tuple[int, Any]:
    return place, make(_on_threads(task.experiment, workers), task.directory, *task.more)


def _on_threads(experiment: Experiment, workers: int) -> Experiment:
    """The experiment as one of several on a machine."""
    return experiment.model_copy(update={"executor": "threads", "workers": experiment.workers or workers})


def _on_a_cluster(make: Make, tasks: Sequence[PlannedRun], jobs: int, executor: str) -> Iterator[tuple[int, Any]]:
    """As tasks that Ray makes again where a node dies. They go on from the run's last checkpoint."""
    with connected(executor, max(cores(), jobs)), _mark_in_sight(tasks[0].directory.parent) as mark:
        import ray

        from polytempo.sim.executors import idle

        idle.end()
        workers = tasks[0].experiment.workers or _cpus_for_each(jobs)
        there = ray.remote(_there).options(num_cpus=workers, max_retries=-1, scheduling_strategy="SPREAD")
        surroundings = Surroundings(os.getcwd(), [path or os.getcwd() for path in sys.path], mark)
        open_tasks = iter(enumerate(tasks))
        running: dict[Any, int] = {}
        try:
            while True:
                while len(running) < jobs and (begun := next(open_tasks, None)) is not None:
                    place, task = begun
                    running[there.remote(surroundings, make, task, workers)] = place
                if not running:
                    return
                (ended, *_), _ = ray.wait(list(running))
                yield running.pop(ended), _result(ended)
        finally:
            for unfinished in running:
                ray.cancel(unfinished)
            if running:
                ray.wait(list(running), num_returns=len(running), timeout=LETTING_GO)


@dataclass(frozen=True)
class Surroundings:
    """What tasks on other nodes are to find as it is here."""

    directory: str
    """The working directory."""
    path: list[str]
    """Where modules are looked for."""
    mark: Path
    """A file beside the runs."""


def _there(surroundings: Surroundings, make: Make, task: PlannedRun, workers: int) -> Any:
    """A run, on whatever node."""
    node = f"The node {_node()}"
    try:
        os.chdir(surroundings.directory)
    except OSError as error:
        raise UserError(
            f"{node} cannot use the working directory {surroundings.directory} ({error.strerror}). Runs side by side "
            "on a cluster need a file system that all nodes share."
        ) from None
    if not surroundings.mark.exists():
        raise UserError(
            f"{node} does not see {surroundings.mark.parent}, where the runs are kept. Choose a directory that all "
            "nodes share, or leave out --jobs."
        )
    sys.path += [directory for directory in surroundings.path if directory not in sys.path]
    try:
        return make(_on_threads(task.experiment, workers), task.directory, *task.more)
    except UserError as error:
        error.args = (f"{node}: {error}", *error.args[1:])
        raise


def _node() -> str:
    import ray

    return str(ray.util.get_node_ip_address())


def _result(ended: Any) -> Any:
    import ray

    try:
        return ray.get(ended)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None


def _cpus_for_each(jobs: int) -> int:
    """So that they fill the cluster, and each has room on one node."""
    import ray

    nodes = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
    return max(1, int(min(sum(nodes) // jobs, max(nodes))))


@contextmanager
def _mark_in_sight(directory: Path) -> Iterator[Path]:
    """A file by which other nodes know the directory that the runs are kept in."""
    directory.mkdir(parents=True, exist_ok=True)
    mark = directory.absolute() / f".{uuid.uuid4().hex}"
    mark.touch()
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)
