"""What a running server counts beside its state: traffic, how long requests take, what was refused."""

import resource
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: the upper ends of the classes that requests are counted in; a last one has no end."""
RECENT = 2048
"""Requests that the quantiles are taken over."""
STRATEGY = "strategy"
"""The kind of refusals for which the method is to blame, and no client."""
PAGE = resource.getpagesize()


class Meters:
    """Written and read by several threads: the loop's, the host's and the flood guard's."""

    def __init__(self) -> None:
        self.refusals: Counter[str] = Counter()
        """By the kind of request, or by what kept it from being taken."""
        self.bytes_in = 0
        self.bytes_out = 0
        self.sessions = 0
        self.incoming_bytes: Callable[[], int] = lambda: 0
        """Of messages that have come in part, or wait for the host."""
        self.journal_failing = False
        self.strategy_failures = 0
        """Events that were rolled back because the strategy failed on them."""
        self.certificate_expires: float | None = None
        """Seconds since 1970; None in plaintext."""
        self.mutual = False
        """Do clients have to show certificates of their own?"""
        self.seconds = 0.0
        """Sum over all requests, from the last frame in to the last frame of the reply out."""
        self._classes = [0] * (len(BOUNDS) + 1)
        self._recent: deque[float] = deque(maxlen=RECENT)

    def count_reply(self, seconds: float) -> None:
        """Count a request that took so long."""
        self.seconds += seconds
        self._classes[bisect_left(BOUNDS, seconds)] += 1
        self._recent.append(seconds)

    def figures(self) -> dict[str, Any]:
        recent = sorted(self._recent.copy())
        return {
            "refusals": dict(self.refusals),
            "sessions": self.sessions,
            "incoming_bytes": self.incoming_bytes(),
            "journal_failing": self.journal_failing,
            "strategy_failures": self.strategy_failures,
            "certificate_expires": self.certificate_expires,
            "mutual": self.mutual,
            "bytes": {"in": self.bytes_in, "out": self.bytes_out},
            "requests": {
                "bounds": BOUNDS,
                "counts": list(self._classes),
                "seconds": self.seconds,
                "p50": _quantile(recent, 0.5),
                "p99": _quantile(recent, 0.99),
            },
            "memory_bytes": resident_bytes(),
        }


def _quantile(ordered: list[float], share: float) -> float | None:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else None


def resident_bytes() -> int | None:
    """Bytes of memory that the process holds; None where the system does not say."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * PAGE
    except OSError:
        return None
