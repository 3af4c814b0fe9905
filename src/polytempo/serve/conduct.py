"""Clients that keep sending what has to be refused."""

from collections import Counter, defaultdict, deque

from polytempo.serve.operations import QuarantineRule


class Conduct:
    """Counts what was refused of each client: over the last while, and since something of it was last taken."""

    def __init__(self) -> None:
        self._lately: defaultdict[int, deque[float]] = defaultdict(deque)
        self._in_a_row: Counter[int] = Counter()
        self.refusals: Counter[int] = Counter()
        """Of each client, since the server started."""

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
