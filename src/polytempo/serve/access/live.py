"""The roster that a running server goes by: ``access.json``, read again when it changes, and who is in quarantine."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from polytempo.core.errors import UserError
from polytempo.serve.access.roster import LONGEST_REASON, Quarantine, Roster, changes, changing, utc_now, with_tables
from polytempo.serve.access.steady_time import SteadyTime
from polytempo.serve.paths import ACCESS
from polytempo.serve.storage.documents import Documents, documents_of
from polytempo_client.logs import log

BLIND_AFTER = 5.0
"""Seconds that the file may be unreadable before nobody new is let in."""
NEVER = object()
"""The stamp of no file."""
WRITE_AGAIN = 5.0
"""Seconds until a quarantine that could not be written is tried again."""


class Access:
    """The roster of a running server, which is another one when the file changes."""

    def __init__(
        self,
        directory: Path,
        roster: Roster | None = None,
        seconds: Callable[[], float] = time.monotonic,
        documents: Documents | None = None,
    ) -> None:
        """``documents``: where the file is looked at, by default where the directory says that it lies."""
        self.directory = directory
        self._documents = documents or documents_of(directory)
        self.problem: str | None = None
        """Why the file cannot be read, if it cannot: who was revoked since is not known."""
        self.now = SteadyTime(seconds=seconds)
        """The time by which tokens expire."""
        self._seconds = seconds
        self._unreadable_since = 0.0
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._unwritten: dict[int, Quarantine] = {}
        self._writing: threading.Thread | None = None
        self._written_at = 0.0
        self.roster = self._read() if roster is None else roster

    @property
    def is_blind(self) -> bool:
        """Has the file been unreadable for so long that nobody new should be let in?"""
        return self.problem is not None and self._seconds() > self._unreadable_since + BLIND_AFTER

    def refresh(self) -> bool:
        """Read the file again if it has changed. One that cannot be read changes nothing and is tried again, so that
        nobody who was revoked stays because files ran out at that moment. Whether the roster is new."""
        self._write_again()
        with self._lock:
            stamp = self._look()
            if stamp == self._stamp and self.problem is None:
                return False
            try:
                found = self._read()
            except UserError as error:
                self._cannot_read(str(error))
                return False
            if self.problem is not None:
                log("access readable again", level=logging.WARNING)
            self.problem, self._stamp = None, stamp
            differences = changes(self.roster, found)
            self._take(found)
            if differences:
                log("access changed", level=logging.WARNING, **differences)
            return bool(differences)

    def _cannot_read(self, reason: str) -> None:
        if self.problem is None:
            self._unreadable_since = self._seconds()
        if reason != self.problem:
            until = "Until it is mended, open sessions go on and nobody new is let in."
            log("access unreadable", level=logging.ERROR, reason=f"{reason} {until}")
        self.problem = reason

    def quarantine(self, client: int, reason: str) -> None:
        """Ignore a client until it is released. The file is written by a thread, because whoever holds its lock
        may take long; what cannot be written holds all the same, and is tried again."""
        with self._lock:
            self._unwritten[client] = Quarantine(since=utc_now(), reason=reason[:LONGEST_REASON])
            self._take(self.roster)
            self._written_at = 0.0
        self._write_again()

    def settle(self, seconds: float) -> None:
        """Wait for what is being written, but not for long."""
        if self._writing is not None:
            self._writing.join(seconds)
        self._write_again()
        if self._writing is not None:
            self._writing.join(seconds)

    def _write_again(self) -> None:
        """What is not in the file yet, if nobody is writing and the last try is a while ago."""
        with self._lock:
            busy = self._writing is not None and self._writing.is_alive()
            if not self._unwritten or busy or self._seconds() < self._written_at + WRITE_AGAIN:
                return
            self._written_at = self._seconds()
            self._writing = threading.Thread(target=self._write_quarantines, daemon=True)
            self._writing.start()

    def _write_quarantines(self) -> None:
        waiting = dict(self._unwritten)
        try:
            with changing(self.directory) as known:
                known["quarantined"].update(waiting)
        except UserError as error:
            log("quarantine not kept", level=logging.ERROR, clients=list(waiting), reason=str(error))
            return
        with self._lock:
            for client, entry in waiting.items():
                if self._unwritten.get(client) is entry:
                    del self._unwritten[client]
            self._stamp = NEVER  # somebody may have released it already
            self._written_at = 0.0

    def _take(self, roster: Roster) -> None:
        self.roster = with_tables(roster, quarantined={**roster.quarantined, **self._unwritten})

    def _read(self) -> Roster:
        return Roster.read_from(self._documents, self.directory / ACCESS)

    def _look(self) -> object:
        return self._documents.stamp(ACCESS)


def release(directory: Path, client: int) -> None:
    """Let a client out of quarantine."""
    with changing(directory) as known:
        if known["quarantined"].pop(client, None) is None:
            raise UserError(f"Client {client} is not in quarantine: there is nothing to release.")
