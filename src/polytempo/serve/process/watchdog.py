"""A method may never come back. Then the log says where it is, ``/healthz`` fails, and the process can still be ended.

A method that hangs in Python leaves the other threads running, and this module acts from there. One that hangs inside a
C function which keeps the GIL stops every thread; then faulthandler's own thread, which needs no GIL, writes the stacks
to stderr and ends the process. The journal has the event's number for the next start."""

import asyncio
import faulthandler
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.leaving_out import leave_out_options
from polytempo.serve.journal.snapshots import keep_state_beside
from polytempo.serve.process.ending import StuckError
from polytempo.serve.process.supervisor import tell_supervisor
from polytempo.serve.server.endings import HostEnding
from polytempo.serve.server.host import Host
from polytempo_client.logs import log

PING_EVERY = 1.0
"""Seconds between signs of life to the supervisor."""
LOOK_EVERY = 0.2
"""Seconds between looks at a thread that may not come back."""

T = TypeVar("T")


class Pings:
    """Signs of life to whoever supervises the process."""

    def __init__(self) -> None:
        self._next = 0.0

    def ping(self) -> None:
        """At most once a second."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PING_EVERY
            tell_supervisor("WATCHDOG=1")


class Watchdog:
    """Looks at a host from the loop's thread."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._is_logged = False
        self._pings = Pings()
        self._keeping: asyncio.Future[None] | None = None
        """A snapshot of the state before the event that hangs."""

    def look(self) -> None:
        """Log once where the method hangs, and keep the state before that event. As long as it does not, tell the
        supervisor that all is well."""
        if not self._host.is_stuck():
            self._is_logged = False
            self._pings.ping()
        elif not self._is_logged:
            self._is_logged = True
            applying = self._host.journal.applying
            log(
                "stuck",
                level=logging.CRITICAL,
                number=applying.number,
                description=applying.description if applying.number else "a question to the method, or the disk",
                seconds=round(self._host.pulse.age(), 1),
                stack=self._host.pulse.stack(),
            )
            if number := applying.number:
                applying.name(number)
                self._keeping = in_thread(lambda: self._keep_state_before(number))

    async def stop(self, deadline: float, ending: HostEnding | None = None) -> None:
        """Stop the host by this time of the monotonic clock. Raises StuckError if it does not come back. To write its
        last snapshot it has all this time; to hang in an event it has not."""
        self._host.begin_stop(ending)
        while not await asyncio.to_thread(self._host.wait_for_end, LOOK_EVERY):
            self.look()
            self._pings.ping()
            applying = self._host.journal.applying
            if time.monotonic() < deadline and not (applying.number and self._host.is_stuck()):
                continue
            if self._keeping is not None:
                await asyncio.wait([self._keeping], timeout=max(deadline - time.monotonic(), LOOK_EVERY))
            doing = applying.description if applying.number else "what it was doing"
            raise StuckError(
                f"The server was told to stop and did not come back from {doing}; it ends without. Every acknowledged "
                "update is in the journal.",
                code=75,
            )

    def _keep_state_before(self, number: int) -> None:
        try:
            keep_state_beside(self._host.journal, self._host.begin, number - 1)
        except Exception as error:
            log("snapshot failed", level=logging.ERROR, number=number - 1, reason=str(error))


async def checked_unless_stopped(check: Callable[[], None], stop: asyncio.Event) -> None:
    """Look at the settings, which imports a strategy's file: it may hang there as well. Raises StuckError if the server
    is told to stop meanwhile."""
    checking = in_thread(check)
    while not checking.done():
        await asyncio.wait([checking], timeout=LOOK_EVERY)
        if stop.is_set() and not checking.done():
            raise StuckError("Stopped while the strategy was being imported.", code=0)
    checking.result()


async def opened_in_time(
    open_journal: Callable[[Callable[[Journal], None]], T],
    event_seconds: float,
    left_out: Sequence[range],
    stop: asyncio.Event,
) -> T:
    """What ``open_journal`` returns. Raises StuckError if the replay of an event hangs, or if the server is told to
    stop meanwhile. ``left_out`` are the events that the operator leaves out already."""
    journals: list[Journal] = []
    opening = in_thread(lambda: open_journal(journals.append))
    while not opening.done():
        await asyncio.wait([opening], timeout=LOOK_EVERY)
        if stop.is_set() and not opening.done():
            raise StuckError("Stopped while the journal was being replayed.", code=0)
        for journal in journals:
            if not opening.done():
                check_replay(journal, event_seconds, left_out)
    return opening.result()


def check_replay(journal: Journal, event_seconds: float, left_out: Sequence[range]) -> None:
    """Raises StuckError if an event that is replayed takes too long."""
    applying = journal.applying
    number, description = applying.number, applying.description
    if number and time.monotonic() - applying.since >= event_seconds:
        applying.name(number)
        raise StuckError(
            f"The strategy does not come back from {description}, which is replayed. Start with "
            f"{leave_out_options({number}, left_out)} to go on without it; mend the strategy and start with "
            "--accept-version; raise watchdog.event_seconds in service.toml; or, as a last resort, start with "
            f"--lose-tail to lose event {number} and everything after it.",
            code=2,
        )


@asynccontextmanager
async def ended_if_frozen(seconds: Callable[[], float]) -> AsyncIterator[None]:
    """End the process, with all stacks on stderr, when this loop has not run for so many seconds."""

    def arm() -> None:
        faulthandler.dump_traceback_later(seconds(), exit=True, file=2)

    async def stay_armed() -> None:
        while True:
            arm()
            await asyncio.sleep(min(PING_EVERY, seconds() / 4))

    arm()  # at once: the loop may not run again
    staying = asyncio.create_task(stay_armed())
    try:
        yield
    finally:
        staying.cancel()
        faulthandler.cancel_dump_traceback_later()


def in_thread(function: Callable[[], T]) -> "asyncio.Future[T]":
    """Do something in a thread that may be left behind when the process ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: None if future.done() else result())

    def run() -> None:
        try:
            result = function()
        except BaseException as error:
            raised = error
            settle(lambda: future.set_exception(raised))
        else:
            settle(lambda: future.set_result(result))

    threading.Thread(target=run, name="polytempo-beside", daemon=True).start()
    return future
