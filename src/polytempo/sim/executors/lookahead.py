"""The order in which computations are carried out ahead of the virtual clock, and the bound on how many. Clients are
independent between dispatch and arrival, so their training may begin at dispatch and is joined at arrival: the
semantics of one at a time, the speed of all at once."""

import heapq
import itertools
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

AT_ONCE = float("-inf")

Kind = Literal["training", "evaluation"]


@dataclass(eq=False)
class Queued:
    """A computation that was asked for."""

    computation: Any
    kind: Kind
    state: Literal["pending", "running", "done", "dropped"] = "pending"
    result: Any = None
    error: BaseException | None = None
    finished: threading.Event = field(default_factory=threading.Event)


class Lookahead:
    """Computations in the order of their arrival times. At most ``ahead`` are running or finished and not yet fetched,
    so that memory does not grow with the number of clients in training. One that is needed at once waits for no room.
    Not safe to use from several threads: executors that have some hold a lock."""

    def __init__(self, ahead: int) -> None:
        self.ahead = ahead
        self.waiting = 0
        """Computations that have not begun."""
        self._held = 0
        self._open: dict[object, Queued] = {}
        self._queue: list[tuple[float, int, Queued]] = []
        self._numbers = itertools.count()

    def add(self, key: object, arrival: float, computation: Any, kind: Kind) -> None:
        queued = Queued(computation, kind)
        self._open[key] = queued
        self.waiting += 1
        self._put(arrival, queued)

    def urge(self, key: object) -> Queued:
        """The computation under this key. If it has not begun, it is the next to begin."""
        queued = self._open[key]
        if queued.state == "pending":
            self._put(AT_ONCE, queued)
        return queued

    def begin(self) -> Queued | None:
        """The next computation, which counts as running from now on; None if none waits or there is no room."""
        while self._queue and self._queue[0][2].state != "pending":
            heapq.heappop(self._queue)
        if not self._queue or (self._held >= self.ahead and self._queue[0][0] != AT_ONCE):
            return None
        queued = heapq.heappop(self._queue)[2]
        queued.state = "running"
        self.waiting -= 1
        self._held += 1
        return queued

    def end(self, queued: Queued, result: Any, error: BaseException | None) -> None:
        """A running computation is finished."""
        if queued.state == "dropped":
            self._held -= 1
        else:
            queued.state, queued.result, queued.error = "done", result, error
        queued.computation = None  # let go of the start weights
        queued.finished.set()

    def fail(self, error: BaseException) -> None:
        """Nothing can be carried out any more."""
        for queued in self._open.values():
            if queued.state != "done":
                queued.state, queued.error = "done", error
                queued.finished.set()

    def repeat(self, queued: Queued) -> None:
        """A running computation came to nothing, for no fault of its own: it is the next to begin."""
        self._held -= 1
        if queued.state != "dropped":
            queued.state = "pending"
            self.waiting += 1
            self._put(AT_ONCE, queued)

    def drop(self, key: object) -> None:
        """Forget a computation; its result, if there is one, is dropped."""
        queued = self._open.pop(key)
        if queued.state == "done":
            self._held -= 1
        elif queued.state == "pending":
            self.waiting -= 1
            queued.computation = None
        queued.state = "dropped"

    def forget(self, key: object) -> None:
        """A finished computation has been fetched."""
        del self._open[key]
        self._held -= 1

    def _put(self, arrival: float, queued: Queued) -> None:
        heapq.heappush(self._queue, (arrival, next(self._numbers), queued))
