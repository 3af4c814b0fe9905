"""Clients that keep sending what has to be refused."""

from collections import defaultdict, deque

from polytempo.serve.operations import QuarantineRule


class Conduct:
    """Counts what was refused of each client, over the last while."""

    def __init__(self) -> None:
        self._refused: defaultdict[int, deque[float]] = defaultdict(deque)

    def refused(self, client: int, now: float, rule: QuarantineRule) -> bool:
        """Something of this client was refused: is that too much?"""
        times = self._refused[client]
        times.append(now)
        while times[0] <= now - rule.seconds:
            times.popleft()
        if len(times) < rule.refusals:
            return False
        del self._refused[client]
        return True
