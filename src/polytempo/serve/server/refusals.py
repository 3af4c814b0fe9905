"""Clients that keep sending what has to be refused."""

from collections import Counter, defaultdict, deque

from polytempo.serve.server.operations import QuarantineRule

CONTESTED, CONTESTED_WITHIN = 3, 600.0
"""So many sessions of a client that took over from another within so many seconds: two programs have its token."""


class RefusalTracker:
    """Counts what was refused of each client: over the last while, and since an update of it was last applied."""

    def __init__(self) -> None:
        self._lately: defaultdict[int, deque[float]] = defaultdict(deque)
        self._in_a_row: Counter[int] = Counter()
        self.refusals: Counter[int] = Counter()
        """Of each client, since the server started."""
        self._takeovers: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=CONTESTED))
        self._expired: dict[int, int] = {}
        self._forgiven: dict[int, int] = {}

    def count_refusal(self, client: int, now: float, rule: QuarantineRule) -> str | None:
        """Count something of this client that was refused. Returns why that is too much, if it is."""
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

    def end_row(self, client: int) -> None:
        """An update of this client was applied: refusals in a row are counted anew."""
        self._in_a_row.pop(client, None)

    def count_takeover(self, client: int, now: float) -> bool:
        """Count a session that took over from another of this client, as after a break in the network. Returns whether
        that has happened so often that somebody else must have its token."""
        times = self._takeovers[client]
        times.append(now)
        return len(times) == CONTESTED and times[0] > now - CONTESTED_WITHIN

    def remember_expired(self, client: int, task: int) -> None:
        """The client expired in the middle of a task (0: of none), and may not know yet."""
        self._expired[client] = task

    def has_expired_with(self, client: int, task: int) -> bool:
        """Is this the task that the client last expired with?"""
        return task > 0 and self._expired.get(client) == task

    def forgive(self, client: int, task: int) -> bool:
        """Forgive an update for a task that was withdrawn, once for each task. Returns whether it is forgiven."""
        before, self._forgiven[client] = self._forgiven.get(client), task
        return before != task
