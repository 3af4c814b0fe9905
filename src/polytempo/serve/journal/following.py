"""A server that stands by reads along: it applies the events that the leader has applied, and compares what they come
to. Then it takes over in the time that the last few events take.

It applies no event before the leader has: one that hangs, or ends the process, would end every server at once."""

import logging
from collections.abc import Callable, Mapping
from typing import Literal

from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.recovery import Warm, newest_snapshot
from polytempo.serve.state.outcome import outcome_of
from polytempo.serve.state.service import Service
from polytempo.serve.storage.errors import JournalError
from polytempo_client.logs import log


class Follower:
    """The state of one journal, a moment behind the leader's. ``versions`` are those of this server's code."""

    def __init__(self, journal: Journal, begin: Callable[[], Service], versions: Mapping[str, str]) -> None:
        self.journal = journal
        self.event = 0
        self.service: Service | None = None
        self.differed_at: int | None = None
        """The last event that came to something else here than with the leader."""
        self._begin, self._versions = begin, versions
        self._epoch = -1
        self._known: tuple[object, str] | None = None
        """The leader's versions, and the journal's timeline, when the state was loaded."""

    @property
    def follows(self) -> Literal["events", "snapshots"]:
        """Bits are promised for one version of the code and one kind of CPU. Another server goes by snapshots."""
        return "events" if self.journal.about["versions"] == self._versions else "snapshots"

    def warm(self) -> Warm | None:
        """The state to take over from, if it is the leader's own."""
        return None if self.service is None or self.follows == "snapshots" else Warm(self.event, self.service)

    def catch_up(self, epoch: int, confirmed: int) -> None:
        """Come to the state after event ``confirmed`` of the leader of this epoch, or to the newest snapshot."""
        if epoch != self._epoch:
            self.journal.look_again()
            self._epoch = epoch
        known = (self.journal.about["versions"], self.journal.timeline)
        if known != self._known or self.service is None:
            self._load(known)
        if self.follows == "snapshots":
            newest = self.journal.newest_snapshot() or 0
            if newest > self.event:
                self._load(known)
        elif confirmed > self.event:
            self._follow(confirmed)

    def _load(self, known: tuple[object, str]) -> None:
        number, state = newest_snapshot(self.journal)
        service = self._begin()
        service.load_state(state)
        self.event, self.service, self._known = number, service, known

    def _follow(self, confirmed: int) -> None:
        """Apply events up to this one, and look at every snapshot on the way."""
        digests = self.journal.digests(self.event, confirmed)
        try:
            for number, digest in [*digests.items(), (confirmed, None)]:
                self._apply_up_to(number)
                if digest is not None and self.service is not None and self.service.digest() != digest:
                    self._differ(number, "the digest of its state")
        except JournalError:
            raise
        except BaseException as error:  # the leader's strategy has taken it: something around ours is wrong
            self.service = None
            raise JournalError(f"Event {self.event + 1} cannot be followed: {error!r}") from error

    def _apply_up_to(self, last: int) -> None:
        if self.service is None:
            return
        outcomes = self.journal.outcomes_between(self.event, last)
        for number, event in self.journal.events(self.event, last):
            self.journal.applying.begin(number, event)
            try:
                orders = self.service.apply(event)
            finally:
                self.journal.applying.end()
            self.event = number
            if number in outcomes and outcomes[number] != outcome_of(orders, self.service.number):
                self._differ(number, "its orders")
                return
        self.event = last

    def _differ(self, number: int, what: str) -> None:
        """Begin again at the newest snapshot: it is the leader's state that counts."""
        log("standby differs", level=logging.CRITICAL, number=number, reason=f"{what} are not the leader's")
        self.differed_at, self.service = number, None
