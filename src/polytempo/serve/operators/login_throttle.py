"""Operators' tokens are checked here. The more wrong ones a peer has tried, the later it is answered. A right one is
never kept waiting, so that nobody can lock an operator out by guessing."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from polytempo.serve.access.roster import Operator
from polytempo_client.logs import log

FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0
"""Seconds until a wrong token is answered; each time twice as long."""
FORGOTTEN_AFTER = 300.0
"""Seconds without a wrong token of a peer."""
PEERS = 1024
"""That are remembered."""


class LoginThrottle:
    """Tells operators from strangers."""

    def __init__(
        self,
        operator_of: Callable[[str], Operator | None],
        wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._operator_of = operator_of
        self._wait = wait
        self._seconds = seconds
        self._failures: dict[str, tuple[int, float]] = {}
        """How many of a peer, and when the last was. The peer that failed last is the last."""

    async def authenticate(self, authorization: str, peer: str) -> Operator | None:
        """Whose token the header brings; None, after a while, if it is nobody's."""
        scheme, _, token = authorization.partition(" ")
        operator = self._operator_of(token.strip()) if scheme.lower() == "bearer" else None
        if operator is None:
            failures = self._count_failure(peer)
            log("operator turned away", level=logging.WARNING, peer=peer, failures=failures)
            await self._wait(min(FIRST_WAIT * 2.0 ** (failures - 1), LONGEST_WAIT))
        return operator

    def _count_failure(self, peer: str) -> int:
        now = self._seconds()
        count, last = self._failures.pop(peer, (0, now))
        count = 1 if now - last > FORGOTTEN_AFTER else min(count + 1, 1000)
        self._failures[peer] = (count, now)
        if len(self._failures) > PEERS:
            del self._failures[next(iter(self._failures))]
        return count
