"""One of several servers that share a database. It stands by until it leads, and again when it leads no more."""

import asyncio
import logging
import os
import socket
import time
from dataclasses import asdict
from typing import Any

from polytempo.core.disk.files import make_directory
from polytempo.serve.journal.continuing import code_of
from polytempo.serve.journal.opening import Opened, Prepared, prepare_service
from polytempo.serve.journal.postgres.store import PostgresStore
from polytempo.serve.journal.stores import Candidate
from polytempo.serve.paths import JOURNAL, LOCK
from polytempo.serve.process.ending import StuckError
from polytempo.serve.process.options import ServeOptions
from polytempo.serve.process.standing_by import Standby
from polytempo.serve.process.turns import Found, found
from polytempo.serve.process.watchdog import LOOK_EVERY, Pings, check_replay, in_thread, opened_in_time
from polytempo.serve.server.endings import HostEnding
from polytempo.serve.server.host import Host
from polytempo.serve.server.pulse import Health
from polytempo.serve.server.requests import TAKES_OVER
from polytempo.serve.server.shared import Shared
from polytempo.serve.storage.address import PostgresAddress
from polytempo.serve.storage.documents import Documents
from polytempo.serve.storage.errors import TakenError
from polytempo.serve.storage.leading import new_holder
from polytempo.serve.storage.lease import ANYBODY
from polytempo.serve.storage.servers import KnownServer, Told
from polytempo.serve.storage.tables import make_tables
from polytempo.serve.storage.watching import DatabaseView
from polytempo_client.disk.locks import LockedError, take
from polytempo_client.logs import log

EVERY_ADDRESS = ("0.0.0.0", "[::]")
"""What it listens on who listens on all addresses of a machine, whose name then says more."""
LEAVE_SECONDS = 5.0
"""That a standby may take to end what it is doing."""


class Several:
    """This server among them."""

    stands_by = True

    def __init__(self, options: ServeOptions, address: PostgresAddress) -> None:
        make_tables(address)
        self._options = options
        self._own = _own_directory(options)
        self._watch = DatabaseView(address, new_holder())
        self.documents: Documents = self._watch
        self._address = ""
        self._prepared: Prepared | None = None
        self._code = ""
        self._standby: Standby | None = None
        self._host: Host | None = None
        self._handed_over = False

    async def open(self, shared: Shared, stop: asyncio.Event) -> Found:
        self._shared = shared
        shared.servers = self._servers
        self._prepared = prepared = await opened_in_time(
            lambda on_open: self._prepare(), shared.operations.watchdog.event_seconds, (), stop
        )
        self._code = str(code_of(prepared.versions))
        return found(prepared.journal, prepared.begun or prepared.begin(), shared.operations)

    def _prepare(self) -> Prepared:
        candidate = Candidate(self._watch.name, self._shared.operations.failover.lease_seconds)
        return prepare_service(self._options.directory / JOURNAL, self._options.settings, candidate=candidate)

    def listen(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = f"{socket.gethostname()}:{port}" if host in EVERY_ADDRESS else address

    async def wait_for_lead(self, stop: asyncio.Event) -> Opened | None:
        consent = self._options.consent if self._host is None else None
        self._host = None
        self._standby = standby = Standby(
            self._prepare, self._watch, self._shared, self._options.directory / JOURNAL, self._address, consent
        )
        prepared, self._prepared = self._prepared, None
        waiting = in_thread(lambda: standby.wait_for_lead(prepared))
        pings, deadline = Pings(), None
        while not waiting.done():
            await asyncio.wait([waiting], timeout=LOOK_EVERY)
            pings.ping()
            self._shared.access.refresh()
            if standby.journal is not None:
                operations = self._shared.operations
                check_replay(standby.journal, operations.watchdog.event_seconds, self._options.consent.leave_out)
            if stop.is_set() and deadline is None:
                standby.leave()
                deadline = time.monotonic() + LEAVE_SECONDS
            if deadline is not None and time.monotonic() > deadline and not waiting.done():
                raise StuckError("Stopped while the database did not answer, or events were being applied.", code=0)
        return waiting.result()

    def lead(self, host: Host) -> None:
        self._host, self._standby, self._handed_over = host, None, False
        self._tell()

    def look(self) -> HostEnding | None:
        """The database may have been lost, or another server leads; or an operator has asked for a hand-over."""
        assert self._host is not None
        store = self._host.journal.store
        assert isinstance(store, PostgresStore)
        assert store.lead is not None
        store.is_followed = bool(self._watch.others())
        self._tell()
        if not store.lead.is_held:
            log("lead not renewed", level=logging.ERROR, number=self._host.journal.last)
            store.cut()
            return HostEnding(TAKES_OVER, is_lost=True, with_snapshot=False)
        lease = self._watch.lease
        if lease is not None and lease.asked and lease.epoch == store.lead.epoch:
            return self._hand_over(lease.asked)
        return None

    def _hand_over(self, asked: str) -> HostEnding | None:
        chosen = [one for one in self._candidates() if asked in (ANYBODY, one.name)]
        if not chosen:
            if not self._handed_over:
                log("hand-over refused", level=logging.ERROR, reason="no server stands by that could lead")
            self._handed_over = True
            return None
        return self._ending_for(chosen[0])

    def ending(self) -> HostEnding:
        candidates = self._candidates()
        return self._ending_for(candidates[0]) if candidates else HostEnding()

    def _ending_for(self, successor: KnownServer) -> HostEnding:
        log("handing over", level=logging.WARNING, to=successor.told.address)
        return HostEnding(TAKES_OVER, successor.name, with_snapshot=successor.told.code != self._code)

    def _candidates(self) -> list[KnownServer]:
        """The servers that could lead now, best first."""
        ready = [one for one in self._watch.others() if one.can_lead]
        return sorted(ready, key=lambda one: (one.told.code == self._code, one.told.event), reverse=True)

    def _tell(self) -> None:
        assert self._host is not None
        self._watch.told = Told("leader", self._address, self._host.journal.last, code=self._code)

    def _servers(self) -> dict[str, Any]:
        """What the status says."""
        lease = self._watch.lease
        return {
            "role": self._watch.told.role,
            "server": self._watch.name,
            "epoch": None if lease is None else lease.epoch,
            "database_problem": self._watch.problem,
            "servers": [one.row() for one in self._watch.servers],
            "standby": asdict(self._watch.told) if self._watch.told.role == "standby" else None,
        }

    def status(self) -> dict[str, Any]:
        if self._host is not None:
            return self._host.status()
        return {} if self._standby is None else self._standby.status()

    def health(self) -> Health:
        if self._host is not None:
            return self._host.health()
        return Health(False, 0.0) if self._standby is None else self._standby.health()

    def close(self) -> None:
        if self._prepared is not None:
            self._prepared.journal.close()
        self._watch.close()
        os.close(self._own)


def _own_directory(options: ServeOptions) -> int:
    """No other server notes things in this directory."""
    directory = options.directory / JOURNAL
    make_directory(directory, 0o700)
    lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        take(lock, directory)
    except LockedError:
        os.close(lock)
        advice = "Give this one a --dir of its own."
        raise TakenError(f"Another server is running with {options.directory}. {advice}") from None
    return lock
