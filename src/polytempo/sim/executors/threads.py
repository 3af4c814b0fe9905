"""Threads of this process. Training and forward passes let go of the interpreter, so that threads share the cores."""

import threading

from polytempo.sim.executors.executor import Executor, Worker, computed
from polytempo.sim.executors.lookahead import Queued

AHEAD = 4
"""Results per thread that are held at most."""


class Threads(Executor):
    """Each thread takes one computation after the other. They start with the first computation."""

    def __init__(self, worker: Worker, workers: int, ahead: int | None = None) -> None:
        super().__init__(workers, AHEAD * workers if ahead is None else ahead)
        self._worker = worker
        self._stopping = False
        self._threads: list[threading.Thread] = []

    def close(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _stir(self) -> None:
        self._changed.notify()
        if not self._threads:
            self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(self.workers)]
            for thread in self._threads:
                thread.start()

    def _wait(self, queued: Queued) -> None:
        queued.finished.wait()

    def _work(self) -> None:
        while (queued := self._next()) is not None:
            done = computed(self._worker, queued.computation)
            with self._changed:
                self._end(queued, done)

    def _next(self) -> Queued | None:
        with self._changed:
            while not self._stopping:
                queued = self._begin()
                if queued is not None:
                    return queued
                self._changed.wait()
        return None
