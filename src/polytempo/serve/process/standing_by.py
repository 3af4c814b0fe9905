"""A server that stands by: it reads the journal along until it may lead."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from polytempo.serve.journal.continuing import NO_CONSENT, Consent, code_of
from polytempo.serve.journal.following import Follower
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import Opened, Prepared
from polytempo.serve.server.pulse import Health
from polytempo.serve.server.shared import Shared
from polytempo.serve.server.status import StatusFile, StatusSources
from polytempo.serve.storage.errors import JournalError, TakenError, UnwritableError
from polytempo.serve.storage.lease import Lease
from polytempo.serve.storage.servers import Told
from polytempo.serve.storage.watching import DatabaseView
from polytempo_client.logs import log

LOOK_SECONDS = 0.5
"""That it waits for news at most."""
AGAIN_AFTER = 10.0
"""Seconds after which a server that could not take over tries again."""


class Standby:
    """``prepare`` finds the service anew. ``consent`` is given to a server that starts, and counts while nobody has led
    since; an error is final then, too."""

    def __init__(
        self,
        prepare: Callable[[], Prepared],
        watch: DatabaseView,
        shared: Shared,
        directory: Path,
        address: str,
        consent: Consent | None = None,
    ) -> None:
        self._prepare, self._watch, self._shared, self._address = prepare, watch, shared, address
        self._consent = consent or NO_CONSENT
        self._is_first = consent is not None
        self._status = StatusFile(directory)
        self._prepared: Prepared | None = None
        self._follower: Follower | None = None
        self._problem = ""
        self._not_before = 0.0
        self._looked = time.monotonic()
        self._leaving = threading.Event()

    def leave(self) -> None:
        """Stand by no more."""
        self._leaving.set()

    def status(self) -> dict[str, Any]:
        return self._status.last

    def health(self) -> Health:
        age = time.monotonic() - self._looked
        return Health(self._watch.is_current and not self._problem, age)

    @property
    def journal(self) -> Journal | None:
        """The journal that it reads."""
        return None if self._prepared is None else self._prepared.journal

    def wait_for_lead(self, prepared: Prepared | None = None) -> Opened | None:
        """The service, from when this server leads it; None if it is told to leave before. This takes a thread of its
        own."""
        self._take_up(prepared)
        try:
            while not self._leaving.is_set():
                self._looked = time.monotonic()
                opened = self._look()
                if opened is not None:
                    return opened
                self._tell()
                self._watch.wait_for_look(LOOK_SECONDS)
        except BaseException:
            self._let_go()
            raise
        self._let_go()
        return None

    def _look(self) -> Opened | None:
        """Apply what there is to apply, and lead if it is time."""
        lease = self._watch.lease
        if lease is None:
            self._note(f"The database does not answer. {self._watch.problem}".strip())
            return None
        try:
            if self._prepared is None:
                self._take_up(self._prepare())
            opened = self._lead(lease)
            if opened is None:
                self._follow(lease)
            return opened
        except UnwritableError as error:  # the database is away, or somebody else was faster
            if not isinstance(error, TakenError):
                self._note(str(error))
                self._let_go()
        except JournalError as error:
            if self._is_first:
                raise
            self._note(str(error))
            self._not_before = time.monotonic() + AGAIN_AFTER
            self._let_go()
        return None

    def _follow(self, lease: Lease) -> None:
        assert self._follower is not None
        if self._is_first:
            reason = "They are for a server that leads at once, and another one leads."
            if self._consent != NO_CONSENT:
                log("options not used", level=logging.WARNING, reason=reason)
            self._consent, self._is_first = NO_CONSENT, False
        self._follower.catch_up(lease.epoch, lease.confirmed)
        if not lease.is_free:
            self._note("")

    def _lead(self, lease: Lease) -> Opened | None:
        """Take over, if nobody leads, or the leader has handed over to this server."""
        assert self._prepared is not None
        assert self._follower is not None
        if self._prepared.begun is None:
            if not lease.is_free and lease.holder != self._watch.name:
                return None
            if time.monotonic() < self._not_before or not (self._is_first or self._can_go_on(lease)):
                return None
            log("taking over", level=logging.WARNING, epoch=lease.epoch + 1, number=lease.last)
        opened = self._prepared.lead(self._consent, self._follower.warm())
        self._prepared = self._follower = None  # it has the journal now
        self._note("")
        return opened

    def _can_go_on(self, lease: Lease) -> bool:
        """Another version, and another kind of CPU, can only go on where a snapshot is the end."""
        assert self._follower is not None
        assert self._prepared is not None
        if self._follower.service is None or self._follower.follows == "events":
            return True
        behind = lease.last - (self._prepared.journal.newest_snapshot() or 0)
        if behind:
            self._note(
                f"This server cannot take over: it is of another version than the last leader, or on another kind of "
                f"CPU, and {behind} events came after the last snapshot. Start a server of that version, or this one "
                "with --accept-version."
            )
        return not behind

    def _take_up(self, prepared: Prepared | None) -> None:
        self._prepared = prepared
        if prepared is not None:
            self._follower = Follower(prepared.journal, prepared.begin, prepared.versions)

    def _let_go(self) -> None:
        """Of the journal: it is opened anew."""
        if self._prepared is not None:
            self._prepared.journal.close()
        self._prepared = self._follower = None

    def _note(self, problem: str) -> None:
        if problem and problem != self._problem:
            log("standby", level=logging.ERROR, reason=problem)
        self._problem = problem

    def _tell(self) -> None:
        """The other servers, and whoever reads the status."""
        follower, prepared = self._follower, self._prepared
        if follower is None or prepared is None:
            self._watch.told = Told(address=self._address, problem=self._problem)
            return
        code = str(code_of(prepared.versions))
        self._watch.told = Told(
            "standby", self._address, follower.event, follower.follows, code, self._problem, follower.differed_at
        )
        if follower.service is not None:
            service = follower.service
            self._status.write(StatusSources(service, service.now, {}, prepared.journal, self._shared, {}))
