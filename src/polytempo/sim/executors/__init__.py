"""Where the work of a run is computed: on threads of this process, or elsewhere. The simulator knows the interface only
(``executor.py``)."""

from polytempo.core.threads import cores
from polytempo.sim.executors.executor import Executor, Worker
from polytempo.sim.executors.threads import Threads


def make_executor(word: str, worker: Worker, workers: int | None) -> Executor:
    """The executor of this word, with so many workers or as many as there is room for."""
    if word == "threads":
        return Threads(worker, workers or cores())
    from polytempo.sim.executors.actors import Actors  # here, because Ray need not be installed
    from polytempo.sim.executors.cluster import free_cpus

    return Actors(worker, workers or free_cpus())
