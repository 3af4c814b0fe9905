"""When a snapshot is made: written by a thread beside what goes on, and kept when it is whole."""

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing

import torch

from polytempo.core.state import pack
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.recovery import recover
from polytempo.serve.journal.store import Snapshot
from polytempo.serve.state.service import Service
from polytempo.serve.storage.errors import LostLeadError
from polytempo_client.logs import log

SNAPSHOT_EVENTS = 10_000
SNAPSHOT_BYTES = 256 << 20
SNAPSHOT_SHARE = 4
"""A snapshot is made after so many events, or after so many bytes handed in and as many times the last one's size."""


def keep_state(journal: Journal, begin: Callable[[], Service], until: int) -> None:
    """A snapshot of the state after event ``until``, rebuilt from the journal. A method that was mended can go on from
    it, whatever the process that writes it ends of."""
    if until != journal.newest_snapshot():
        state = recover(journal, begin, until).save_state()
        journal.add_snapshot(journal.write_snapshot(until, *pack(state)))
        log("snapshot", number=until)


def keep_state_beside(journal: Journal, begin: Callable[[], Service], until: int) -> None:
    """The same, while the thread that has the journal never comes back."""
    torch.set_num_threads(1)
    with closing(Journal(journal.directory, journal.store.beside())) as other:
        keep_state(other, begin, until)


class Snapshots:
    """Makes the snapshots of one journal. All but the writing happens on the caller's thread."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.writer: Executor = ThreadPoolExecutor(1, "polytempo-snapshot")
        self._writing: Future[Snapshot] | None = None

    def keep_up(self, service: Service) -> None:
        """Begin a snapshot if one is due, and keep the one that has become whole."""
        most_bytes = max(SNAPSHOT_BYTES, SNAPSHOT_SHARE * self._journal.snapshot_bytes)
        due = self._journal.unsaved_events >= SNAPSHOT_EVENTS or self._journal.unsaved_bytes >= most_bytes
        if due and self._writing is None:
            self._begin(service)
        if self._writing is not None and self._writing.done():
            self._keep()

    def finish(self, service: Service) -> None:
        """Wait for what is being written, and end with a snapshot of the last event."""
        if self._writing is not None:
            self._keep()
        if self._journal.last != self._journal.newest_snapshot():
            self._begin(service)
        if self._writing is not None:
            self._keep()

    def close(self, wait: bool = True) -> None:
        """``wait``: for what is being written."""
        self.writer.shutdown(wait)

    def _begin(self, service: Service) -> None:
        try:
            frozen = service.frozen()
        except BaseException as error:  # a strategy may raise anything, or keep what cannot be packed
            self._failed(error)
            return
        self._writing = self.writer.submit(self._journal.write_snapshot, self._journal.last, *frozen)

    def _keep(self) -> None:
        writing, self._writing = self._writing, None
        assert writing is not None
        try:
            made = writing.result()
            self._journal.keep_snapshot(made)
            log("snapshot", number=made.number, bytes=made.size)
        except LostLeadError:
            raise
        except Exception as error:  # the disk, the memory, or a tensor that cannot be written
            self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """The events are safe; the next snapshot is tried after as many again."""
        log("snapshot failed", level=logging.ERROR, reason=str(error) or type(error).__name__)
        self._journal.unsaved_events = self._journal.unsaved_bytes = 0
