"""When a server leads. One that has the service for itself leads at once, for as long as it runs. Where several share a
database, ``several.py`` says whose turn it is."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import Opened, open_service, recorded_settings
from polytempo.serve.paths import JOURNAL
from polytempo.serve.process.ending import StuckError
from polytempo.serve.process.options import ServeOptions
from polytempo.serve.process.watchdog import opened_in_time
from polytempo.serve.server.endings import HostEnding
from polytempo.serve.server.host import Host
from polytempo.serve.server.operations import Operations
from polytempo.serve.server.pulse import Health
from polytempo.serve.server.shared import Shared
from polytempo.serve.state.service import Service
from polytempo.serve.storage.documents import Documents, documents_of
from polytempo_client.model.schema import Schema


@dataclass(frozen=True)
class Found:
    """The service that a server has opened, before it leads it."""

    schema: Schema
    event: int
    """Number of the last event in its journal."""
    defences: str
    """What is done about hostile updates, in words."""


class Turns(Protocol):
    """Those of one server."""

    stands_by: bool
    """May another server lead while this one runs?"""
    documents: Documents
    """Who may talk to the service, and how it is run."""

    async def open(self, shared: Shared, stop: asyncio.Event) -> Found: ...

    def listen(self, address: str) -> None:
        """Clients reach it here."""

    async def wait_for_lead(self, stop: asyncio.Event) -> Opened | None:
        """The service, from when this server leads it; None if it is told to stop before."""

    def lead(self, host: Host) -> None:
        """This host runs the service now."""

    def look(self) -> HostEnding | None:
        """While it leads: how it is to end, if it is."""

    def ending(self) -> HostEnding:
        """How it is to end because it was told to stop."""

    def status(self) -> dict[str, Any]: ...

    def health(self) -> Health: ...

    def close(self) -> None: ...


class Alone:
    """The only server of a service, which is kept in its directory."""

    stands_by = False

    def __init__(self, options: ServeOptions) -> None:
        self.documents = documents_of(options.directory)
        self._options = options
        self._opened: Opened | None = None
        self._host: Host | None = None

    async def open(self, shared: Shared, stop: asyncio.Event) -> Found:
        options = self._options
        self._opened = opened = await opened_in_time(
            partial(open_service, options.directory / JOURNAL, options.settings, options.consent, None),
            shared.operations.watchdog.event_seconds,
            options.consent.leave_out,
            stop,
        )
        return found(opened.journal, opened.service, shared.operations)

    def listen(self, address: str) -> None:
        pass

    async def wait_for_lead(self, stop: asyncio.Event) -> Opened | None:
        assert self._opened is not None
        return self._opened

    def lead(self, host: Host) -> None:
        self._host = host

    def look(self) -> HostEnding | None:
        return None

    def ending(self) -> HostEnding:
        return HostEnding()

    def status(self) -> dict[str, Any]:
        return {} if self._host is None else self._host.status()

    def health(self) -> Health:
        return Health(False, 0.0) if self._host is None else self._host.health()

    def close(self) -> None:
        if self._opened is not None:
            self._opened.journal.close()


def found(journal: Journal, service: Service, operations: Operations) -> Found:
    bound = operations.bound(service.setting.initial_norm)
    return Found(service.schema, journal.last, ", ".join([*recorded_settings(journal).defences(), bound.words]))


@contextmanager
def closed_unless_stuck(turns: Turns) -> Iterator[None]:
    """Close the journal at the end; but not under a thread that may be inside it, with which the process ends."""
    try:
        yield
    except StuckError:
        raise
    except BaseException:
        turns.close()
        raise
    turns.close()
