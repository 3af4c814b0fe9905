"""Training ahead of the virtual clock. Clients are independent between dispatch and arrival, so their training starts
on worker threads at dispatch and is joined at arrival: the semantics of one at a time, the speed of all at once."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

R = TypeVar("R")
AT_ONCE = float("-inf")


@dataclass(eq=False)
class _Job:
    work: Callable[[], Any]
    kind: Literal["training", "evaluation"]
    state: Literal["pending", "running", "done", "dropped"] = "pending"
    result: Any = None
    error: BaseException | None = None
    finished: threading.Event = field(default_factory=threading.Event)


@dataclass
class Spent:
    """Where the time went, in seconds."""

    training_cpu: float = 0.0
    """CPU time of all threads in local training."""
    working_wall: float = 0.0
    """Wall time in which at least one thread was training or evaluating."""


class Lookahead:
    """Worker threads that run jobs in the order of their arrival times. At most ``ahead`` jobs are running or finished
    and not yet fetched, so that memory does not grow with the number of clients in training."""

    def __init__(self, workers: int, ahead: int | None = None) -> None:
        self.workers = workers
        self._spent = Spent()
        self._ahead = ahead if ahead is not None else 4 * workers
        self._held = 0
        self._working = 0
        self._working_since = 0.0
        self._stopping = False
        self._jobs: dict[object, _Job] = {}
        self._queue: list[tuple[float, int, _Job]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []  # started with the first job

    def submit(self, key: object, arrival: float, work: Callable[[], Any]) -> None:
        """Queue a training job that is needed at this virtual time."""
        self._submit(key, arrival, _Job(work, "training"))

    def cancel(self, key: object) -> None:
        """Forget a job; its result, if there is one, is dropped."""
        with self._changed:
            job = self._jobs.pop(key)
            if job.state == "done":
                self._held -= 1
                self._changed.notify_all()
            job.state = "dropped"

    def fetch(self, key: object) -> Any:
        """Wait for a job, before all others, and forget it."""
        job = self._jobs[key]
        with self._changed:
            if job.state == "pending":
                heapq.heappush(self._queue, (AT_ONCE, next(self._numbers), job))
                self._changed.notify()
        job.finished.wait()
        with self._changed:
            del self._jobs[key]
            self._held -= 1
            self._changed.notify()
        if job.error is not None:
            raise job.error
        return job.result

    def evaluate(self, works: Sequence[Callable[[], R]]) -> list[R]:
        """Run evaluation jobs now, on all threads, and wait for all of them."""
        keys = [("evaluation", next(self._numbers)) for _ in works]
        for key, work in zip(keys, works, strict=True):
            self._submit(key, AT_ONCE, _Job(work, "evaluation"))
        return [self.fetch(key) for key in keys]

    def spent(self) -> Spent:
        """Where the time went so far, the work going on included."""
        with self._changed:
            going_on = time.perf_counter() - self._working_since if self._working else 0.0
            return Spent(self._spent.training_cpu, self._spent.working_wall + going_on)

    def close(self) -> None:
        """Stop the threads; jobs that have not begun are dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _submit(self, key: object, arrival: float, job: _Job) -> None:
        with self._changed:
            self._jobs[key] = job
            heapq.heappush(self._queue, (arrival, next(self._numbers), job))
            self._changed.notify()
        if not self._threads:
            self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self.workers)]
            for thread in self._threads:
                thread.start()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            began = time.thread_time()
            try:
                job.result = job.work()
            except BaseException as error:
                job.error = error
            with self._changed:
                if job.kind == "training":
                    self._spent.training_cpu += time.thread_time() - began
                self._working -= 1
                if not self._working:
                    self._spent.working_wall += time.perf_counter() - self._working_since
                if job.state == "dropped":
                    self._held -= 1
                else:
                    job.state = "done"
            job.work = _nothing  # let go of the start weights
            job.finished.set()

    def _next(self) -> _Job | None:
        with self._changed:
            while True:
                if self._stopping:
                    return None
                while self._queue and self._queue[0][2].state != "pending":
                    heapq.heappop(self._queue)
                if self._queue and (self._held < self._ahead or self._queue[0][0] == AT_ONCE):
                    break
                self._changed.wait()
            job = heapq.heappop(self._queue)[2]
            job.state = "running"
            self._held += 1
            if not self._working:
                self._working_since = time.perf_counter()
            self._working += 1
            return job


def _nothing() -> None:
    return None


def in_parts(items: Iterable[R], parts: int) -> list[list[R]]:
    """Deal items out into at most ``parts`` lists of nearly equal length."""
    items = list(items)
    return [items[i::parts] for i in range(min(parts, len(items)))]
