"""The search for the server that has the service: which address to try next, after which pause, and when to give up."""

import time

from polytempo_client.errors import UnreachableError, UserError
from polytempo_client.session.addresses import Servers
from polytempo_client.session.failures import FailedAttempt

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds before a client tries again."""
LONGEST_AT_FIRST, AT_FIRST = 1.0, 60.0
"""A server that restarts is back soon: for a minute after a session, pauses are no longer than a second. Where there
are several servers they never are: one of them has the service, or will in a moment."""


class Search:
    """Which address to try next, and after which pause."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self.several = len(servers.addresses) > 1
        self._turn = 0
        self._found: int | None = None
        """The address that is known to have the service."""
        self._pause = FIRST_PAUSE
        self._spoke = -AT_FIRST
        """When a request was last answered."""
        self._lost = time.monotonic()
        """When there was last a session."""
        self._elsewhere = self._wrong = 0
        """How many servers in a row have sent the client to another one, or showed a wrong certificate."""
        self._ever = False
        """Was there ever a session, ..."""
        self.greeted = False
        """... and at the last attempt?"""

    @property
    def address(self) -> str:
        return self._servers.addresses[self._turn]

    @property
    def others(self) -> list[str]:
        """The other addresses, in the order in which they would be tried."""
        turn = self._turn
        return [*self._servers.addresses[turn + 1 :], *self._servers.addresses[:turn]]

    def go_to(self, address: str) -> None:
        """Try this one next, at once."""
        self._found = self._servers.addresses.index(address)

    def begin(self) -> None:
        self.greeted = False

    def note_session(self) -> None:
        self.greeted = self._ever = True
        self._elsewhere = self._wrong = 0

    def note_answer(self) -> None:
        self._pause, self._spoke = FIRST_PAUSE, time.monotonic()

    def hopeless(self, failure: FailedAttempt) -> UserError | None:
        """Is there no use in trying again? A certificate that is wrong where one was right before is somebody's
        mistake, and will be mended."""
        if self.greeted:
            self._lost = time.monotonic()
        self._wrong = self._wrong + 1 if failure.wrong_certificate else 0
        if failure.error is not None and not failure.wrong_certificate:
            return failure.error
        if not self._ever and self._wrong >= len(self._servers.addresses):
            return failure.error
        limit = self._servers.give_up_after
        if limit is not None and time.monotonic() - self._lost >= limit:
            return UnreachableError(
                f"{self._servers} could not be reached for {limit:g} s, the last time because: {failure.reason} "
                "Nothing that the server acknowledged is lost; start again when there is a network."
            )
        return None

    def pause(self, failure: FailedAttempt) -> float:
        """Go on to the next address: the seconds to wait before. A server that knows that it is another's turn costs
        no pause, unless all of them say so; neither does one that has the service."""
        found, self._found = self._found, None
        if found is not None:
            self._turn, self._elsewhere = found, 0
            return 0.0
        self._turn = (self._turn + 1) % len(self._servers.addresses)
        self._elsewhere = self._elsewhere + 1 if failure.elsewhere else 0
        if failure.elsewhere and self._elsewhere % len(self._servers.addresses):
            return 0.0
        import random  # here, because it takes long to import

        pause = self._pause * random.uniform(0.5, 1.0)  # so that not all clients come at the same moment
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        if self.several or time.monotonic() < self._spoke + AT_FIRST:
            self._pause = min(self._pause, LONGEST_AT_FIRST)
        return pause
