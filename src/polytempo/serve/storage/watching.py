"""What a server knows of its database, a moment ago. A thread looks several times a second, and when there is word, so
that nobody else waits for the database: who leads, which other servers there are, and the documents."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from polytempo.serve.storage import lease, notices, servers
from polytempo.serve.storage.address import PostgresAddress
from polytempo.serve.storage.database import Connection, connect, query, told_in_words
from polytempo.serve.storage.document_table import TableDocuments
from polytempo.serve.storage.documents import DocumentChange, Documents
from polytempo.serve.storage.errors import JournalError
from polytempo.serve.storage.lease import Lease
from polytempo.serve.storage.servers import KnownServer, Told
from polytempo_client.logs import log

LOOK_EVERY = 0.25
"""Seconds."""
TELL_EVERY = 1.0
CURRENT_FOR = 2.0
"""Seconds for which a look counts."""


class DatabaseView(Documents):
    """The database as this server sees it. As documents, it gives what it has seen."""

    is_shared = True

    def __init__(self, address: PostgresAddress, name: str) -> None:
        """Looks once before it returns."""
        self.address, self.name = address, name
        self.told = Told()
        """What this server tells of itself: whoever knows replaces it."""
        self.servers: list[KnownServer] = []
        self.problem = ""
        """Why the database does not answer."""
        self._documents: dict[str, tuple[int, bytes]] = {}
        self._table = TableDocuments(address)
        self._lease: Lease | None = None
        self._looked = self._next_tell = 0.0
        self._said: object = None
        self._listens_to_events: bool | None = None
        self._connection: Connection | None = None
        self._ending = threading.Event()
        self._news = threading.Condition()
        self._looks = 0
        self._look()
        self._thread = threading.Thread(target=self._run, name="polytempo-watch", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        return time.monotonic() < self._looked + CURRENT_FOR

    @property
    def lease(self) -> Lease | None:
        """As it was at the last look; None if that is too long ago."""
        return self._lease if self.is_current else None

    @property
    def leads(self) -> bool:
        """Does this server lead, as it says?"""
        return self.told.role == "leader"

    def others(self) -> list[KnownServer]:
        """The other servers that are there."""
        return [one for one in self.servers if one.name != self.name and one.is_there]

    def wait_for_look(self, seconds: float) -> None:
        """Until there was another look at the database, or for so many seconds."""
        with self._news:
            looks = self._looks
            self._news.wait_for(lambda: self._looks != looks, seconds)

    def close(self) -> None:
        self._ending.set()
        self._thread.join(CURRENT_FOR)

    # The thread.

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._wait()
                self._look()
                if self.problem:
                    log("database answers again", level=logging.WARNING)
                self.problem = ""
            except JournalError as error:
                if not self.problem:
                    log("database does not answer", level=logging.ERROR, reason=str(error))
                self.problem, self._lease = str(error), None
                self._close()
                self._ending.wait(LOOK_EVERY)
            with self._news:
                self._looks += 1
                self._news.notify_all()
        self._leave()

    def _wait(self) -> None:
        """For word, or until it is time: a standby looks at the moment when the lease expires."""
        if self._connection is None:
            return
        seconds = LOOK_EVERY
        if self._lease is not None and not self.leads and self._lease.seconds > 0:
            seconds = min(seconds, self._lease.seconds + 0.01)
        with told_in_words(self.address):
            notices.wait(self._connection, seconds)

    def _look(self) -> None:
        if self._connection is None:
            self._connection, self._listens_to_events = connect(self.address, self.name), None
        with told_in_words(self.address):
            self._listen(self._connection)
            began = time.monotonic()
            self._lease = lease.look(self._connection)
            self._read_documents(self._connection)
            told = self.told
            if began >= self._next_tell or told.standing != self._said:
                self._next_tell, self._said = began + TELL_EVERY, told.standing
                servers.tell(self._connection, self.name, told)
                self.servers = servers.servers(self._connection)
            self._looked = began

    def _listen(self, connection: Connection) -> None:
        """A leader need not hear of its own appends."""
        if self._listens_to_events is self.leads or self._listens_to_events is None:
            self._listens_to_events = not self.leads
            notices.listen(connection, self.address, self._listens_to_events)

    def _read_documents(self, connection: Connection) -> None:
        revisions = dict(query(connection, "SELECT name, revision FROM documents"))
        known = {name: found for name, found in self._documents.items() if name in revisions}
        for name, revision in revisions.items():
            if name not in known or known[name][0] != revision:
                found = query(connection, "SELECT revision, content FROM documents WHERE name = ?", (name,))
                known.update((name, row) for row in found)
        self._documents = known

    def _leave(self) -> None:
        try:
            if self._connection is not None:
                with told_in_words(self.address):
                    servers.leave(self._connection, self.name)
        except JournalError:
            pass  # it is counted out when it says nothing more
        self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # Documents.

    def title(self, name: str) -> str:
        return self._table.title(name)

    def read(self, name: str) -> bytes:
        if not self.is_current:
            raise OSError(110, "the database has not answered for some seconds")
        try:
            return self._documents[name][1]
        except KeyError:
            raise FileNotFoundError(2, "it is missing", name) from None

    def stamp(self, name: str) -> object:
        return self._documents.get(name, (0,))[0] if self.is_current else None

    @contextmanager
    def changing(self, name: str, make: bool = False) -> Iterator[DocumentChange]:
        changing: AbstractContextManager[DocumentChange] = self._table.changing(name, make)
        with changing as change:
            yield change
