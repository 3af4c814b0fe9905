"""From a journal to the state that it stands for: the newest snapshot, and every event after it."""

import logging
from collections.abc import Callable
from typing import Any

from polytempo.serve.journal.database import DamagedError, JournalError
from polytempo.serve.journal.store import Journal
from polytempo.serve.logs import log
from polytempo.serve.state.events import Event
from polytempo.serve.state.service import Service


def recover(journal: Journal, begin: Callable[[], Service], until: int | None = None) -> Service:
    """The state after the last event (or after event ``until``). An event of the last batch that the strategy cannot
    take, because the server died before it could be marked as void, is left out: it was never acknowledged. Any other
    was taken when it happened, so that something else is wrong."""
    last_batch = journal.last_batch()
    void: dict[int, str] = {}
    while True:
        after, state = newest_snapshot(journal, until)
        service = begin()
        service.load_state(state)
        for number, event in journal.events(after, until):
            if number in void:
                if event.kind != "fired":
                    continue
                event = Event("dropped", event.at, key=event.key)
            try:
                service.apply(event)
            except BaseException as error:  # a strategy may raise anything
                if number < last_batch:
                    why = f"the strategy cannot take it again ({error!r})"
                    raise DamagedError(journal.directory, number, why) from error
                log("event left out", number=number, kind=event.kind, client=event.client, reason=repr(error))
                void[number] = repr(error)
                break
        else:
            for number, reason in void.items():
                journal.void(number, reason)
            return service


def newest_snapshot(journal: Journal, until: int | None = None) -> tuple[int, dict[str, Any]]:
    """The newest snapshot that can be read: the event after which it was taken, and the state."""
    for number in reversed(journal.snapshots()):
        if until is None or number <= until:
            try:
                return number, journal.load_snapshot(number)
            except DamagedError as error:
                log("snapshot damaged", level=logging.ERROR, number=number, reason=str(error))
    raise JournalError(
        f"No snapshot of the journal in {journal.directory} can be read. Nothing was changed. Restore it from a backup."
    )
