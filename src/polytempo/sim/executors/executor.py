"""The interface between the simulator and whatever computes for it, and what all executors share."""

import itertools
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from polytempo.sim.executors.lookahead import AT_ONCE, Kind, Lookahead, Queued


class Computation(Protocol):
    """Work as plain data. The same computation always gives the same bits, whoever computes it."""

    def tensors(self) -> list[Tensor]:
        """Those that other computations may hold as well, such as a model that several clients were sent."""


class Worker(Protocol):
    """What carries out computations, with all that they have in common. Threads share one; each process has its own."""

    data: dict[str, Tensor]
    """By name what computations refer to and what stays as it is during a run."""

    def do(self, computation: Any) -> Any:
        """The result of a computation."""


class Computed(NamedTuple):
    """What came of a computation."""

    result: Any
    error: BaseException | None
    cpu: float
    """Seconds of CPU time of the thread that carried it out."""
    wall: float
    """Seconds that it took."""


def computed(worker: Worker, computation: Any) -> Computed:
    """Carry out a computation here and now."""
    cpu, wall = time.thread_time(), time.perf_counter()
    try:
        result, error = worker.do(computation), None
    except BaseException as raised:
        result, error = None, raised
    return Computed(result, error, time.thread_time() - cpu, time.perf_counter() - wall)


@dataclass
class Spent:
    """Where the time went, in seconds."""

    training_cpu: float = 0.0
    """CPU time of all workers in local training."""
    working_wall: float = 0.0
    """Wall time in which at least one worker was at work."""


class Executor(ABC):
    """Has computations carried out in the order of their arrival times, ahead of the clock, with a bound on what it
    holds. Its caller is one thread."""

    def __init__(self, workers: int, ahead: int) -> None:
        self.workers = workers
        self._ahead = Lookahead(ahead)
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._spent = Spent()
        self._working = 0
        self._working_since = 0.0

    def submit(self, key: object, arrival: float, computation: Computation) -> None:
        """Queue a training that is needed at this virtual time."""
        self._add(key, arrival, computation, "training")

    def cancel(self, key: object) -> None:
        """Forget a computation; its result, if there is one, is dropped."""
        with self._changed:
            self._ahead.drop(key)
            self._stir()

    def fetch(self, key: object) -> Any:
        """Wait for a computation, before all others, and forget it. An error in it is raised here."""
        with self._changed:
            queued = self._ahead.urge(key)
            self._stir()
        self._wait(queued)
        with self._changed:
            self._ahead.forget(key)
            self._stir()
        if queued.error is not None:
            raise queued.error
        return queued.result

    def evaluate(self, computations: Sequence[Computation]) -> list[Any]:
        """Have these carried out now, before all training, and wait for all of them."""
        keys = [("evaluation", next(self._numbers)) for _ in computations]
        for key, computation in zip(keys, computations, strict=True):
            self._add(key, AT_ONCE, computation, "evaluation")
        return [self.fetch(key) for key in keys]

    def spent(self) -> Spent:
        """Where the time went so far, the work going on included."""
        with self._changed:
            going_on = time.perf_counter() - self._working_since if self._working else 0.0
            return Spent(self._spent.training_cpu, self._spent.working_wall + going_on)

    @abstractmethod
    def close(self) -> None:
        """Let go of the workers; computations that have not begun are dropped."""

    @abstractmethod
    def _stir(self) -> None:
        """A computation has come, or room for one. The lock is held."""

    @abstractmethod
    def _wait(self, queued: Queued) -> None:
        """Return when the computation is finished."""

    def _add(self, key: object, arrival: float, computation: Computation, kind: Kind) -> None:
        with self._changed:
            self._ahead.add(key, arrival, computation, kind)
            self._stir()

    def _begin(self) -> Queued | None:
        """The next computation, which a worker begins now. The lock is held."""
        queued = self._ahead.begin()
        if queued is not None:
            if not self._working:
                self._working_since = time.perf_counter()
            self._working += 1
        return queued

    def _end(self, queued: Queued, done: Computed) -> None:
        """A worker has carried out a computation. The lock is held."""
        if queued.kind == "training":
            self._spent.training_cpu += done.cpu
        self._stop_working()
        self._ahead.end(queued, done.result, done.error)

    def _stop_working(self) -> None:
        self._working -= 1
        if not self._working:
            self._spent.working_wall += time.perf_counter() - self._working_since
