"""From a journal to the state that it stands for: the newest snapshot, and every event after it."""

from collections.abc import Callable

from polytempo.serve.journal import DamagedError, Journal
from polytempo.serve.logs import log
from polytempo.serve.service import Service


def recover(journal: Journal, begin: Callable[[], Service], until: int | None = None) -> Service:
    """The state after the last event (or after event ``until``). An event that the strategy cannot take, because the
    server died before it could be marked as void, is left out: it was never acknowledged."""
    void: set[int] = set()
    while True:
        service, after = _from_snapshot(journal, begin, until)
        for number, event in journal.events(after, until):
            if number in void:
                continue
            try:
                service.apply(event)
            except Exception as error:
                log("event left out", number=number, kind=event.kind, client=event.client, reason=repr(error))
                void.add(number)
                break
        else:
            for number in void:
                journal.void(number, "the strategy failed")
            return service


def _from_snapshot(journal: Journal, begin: Callable[[], Service], until: int | None) -> tuple[Service, int]:
    """The newest snapshot that can be read, in a service of its own, and the event it was taken after."""
    numbers = [number for number in journal.snapshots() if until is None or number <= until]
    for number in reversed(numbers):
        try:
            state = journal.load_snapshot(number)
        except DamagedError as error:
            log("snapshot damaged", number=number, reason=str(error))
            if number == numbers[0]:
                raise
            continue
        service = begin()
        service.load_state(state)
        return service, number
    raise LookupError(until)
