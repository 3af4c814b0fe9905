"""Clients that keep sending what has to be refused."""

from collections import Counter, defaultdict, deque

from polytempo.serve.server.operations import QuarantineRule

CONTESTED, CONTESTED_WITHIN = 3, 600.0
"""So many sessions of a client that took over from another within so many seconds: two programs have its token."""


class Conduct:
    """Counts what was refused of each client: over the last while, and since something of it was last taken."""

    def __init__(self) -> None:
        self._lately: defaultdict[int, deque[float]] = defaultdict(deque)
        self._in_a_row: Counter[int] = Counter()
        self.refusals: Counter[int] = Counter()
        """Of each client, since the server started."""
        self._replaced: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=CONTESTED))
        self._withdrawn: dict[int, int] = {}
        self._void: dict[int, int] = {}

    def refused(self, client: int, now: float, rule: QuarantineRule) -> str | None:
        """Something of this client was refused: why that is too much, if it is."""
        self.refusals[client] += 1
        self._in_a_row[client] += 1
        times = self._lately[client]
        times.append(now)
        while times[0] <= now - rule.seconds:
            times.popleft()
        if max(len(times), self._in_a_row[client]) < rule.refusals:
            return None
        how = f"within {rule.seconds:g} s" if len(times) >= rule.refusals else "in a row"
        del self._lately[client], self._in_a_row[client]
        return f"{rule.refusals} refusals {how}"

    def taken(self, client: int) -> None:
        """An update of this client was taken."""
        self._in_a_row.pop(client, None)

    def replaced(self, client: int, now: float) -> bool:
        """A session took over from another of this client, as after a break in the network. Has that happened so often
        that somebody else must have its token?"""
        times = self._replaced[client]
        times.append(now)
        return len(times) == CONTESTED and times[0] > now - CONTESTED_WITHIN

    def left(self, client: int, task: int) -> None:
        """The client was counted out in the middle of a task (0: of none), and may not know yet."""
        self._withdrawn[client] = task

    def left_with(self, client: int, task: int) -> bool:
        """Is this the task that the client was last counted out with?"""
        return task > 0 and self._withdrawn.get(client) == task

    def forgives(self, client: int, task: int) -> bool:
        """An update for a task that was withdrawn is nobody's fault, once for each task."""
        before, self._void[client] = self._void.get(client), task
        return before != task
