"""From a journal to the state that it stands for: the newest snapshot, and every event after it."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from polytempo.core.errors import StrategyError
from polytempo.serve.journal.failures import DependentError, Failure, UnreplayableError
from polytempo.serve.journal.journal import Journal
from polytempo.serve.state.events import Event
from polytempo.serve.state.outcome import outcome_of
from polytempo.serve.state.service import Dispatched, Service
from polytempo.serve.storage.errors import DamagedError, JournalError
from polytempo_client.logs import log

MOST_FAILURES = 20
"""Events that the strategy cannot take, before the search for more ends. Each costs another replay."""


class Warm(NamedTuple):
    """A state that is there already."""

    event: int
    """The last event in it."""
    service: Service


@dataclass
class Deviation:
    """Where a replay stops being what happened: at the first event that is left out, or that comes to something else
    than it did."""

    left_out: set[int] = field(default_factory=set)
    """Events to replay without, and those that are found on the way and may be left out."""
    allowed: Sequence[range] = ()
    """Events that may be left out if they cannot be taken."""
    outcomes: Mapping[int, int] | None = None
    """What each event came to when another version of the code applied it, where that is known."""
    first_event: int | None = None
    """Number of the first event that is left out or comes to something else."""
    last_common_order: int | None = None
    """Number of the last order that is surely the same: before that event, or before one of which it is not known what
    it came to."""
    dependents: list[Failure] = field(default_factory=list)
    """Events that do not fit without those that are left out."""
    _last_order: int = field(default=0, repr=False)

    @property
    def is_expected(self) -> bool:
        """May events come to something else than they did?"""
        return bool(self.left_out or self.allowed) or self.outcomes is not None

    def leave_out(self, failure: Failure) -> bool:
        """Leave an event out that cannot be taken, if that is allowed. Returns whether it is. What fails because the
        process lacks something has to be named itself: that is no reason to lose a range."""
        number = failure.number
        named = any(number == events.start for events in self.allowed)
        covered = any(number in events for events in self.allowed) and not failure.is_of_surroundings
        if number in self.left_out or not (named or covered):
            return False
        self.left_out.add(number)
        return True

    def begin(self, last_order: int) -> None:
        """A replay begins after the order with this number."""
        self.first_event = self.last_common_order = None
        self.dependents.clear()
        self._last_order = last_order

    def follow(self, number: int, orders: list[Dispatched], last_order: int) -> None:
        """The event with this number was replayed, and led to these orders."""
        before, self._last_order = self._last_order, last_order
        if self.first_event is not None and self.last_common_order is not None:
            return
        skipped = [one for one in self.left_out if one <= number]
        outcome, now = None if self.outcomes is None else self.outcomes.get(number), outcome_of(orders, last_order)
        differs = outcome is not None and outcome != now
        is_unknown = outcome is None and self.outcomes is not None
        if self.first_event is None and (skipped or differs):
            self.first_event = min([number, *skipped])
        if self.last_common_order is None and (skipped or differs or is_unknown):
            self.last_common_order = before


def recover(
    journal: Journal,
    begin: Callable[[], Service],
    until: int | None = None,
    deviation: Deviation | None = None,
    warm: Warm | None = None,
) -> Service:
    """The state after the last event (or after event ``until``). An event of the last batch that was never applied, and
    that the strategy cannot take, is left out: nobody was told that it happened. Any other was taken when it happened,
    and is refused now because something around it changed: that is an UnreplayableError. So is every failure where the
    replay deviates. ``warm`` is tried first, in place of the newest snapshot, where it does not."""
    deviation = deviation or Deviation()
    failures: dict[int, Failure] = {}
    while True:
        after, service = _from_snapshot(journal, begin, until) if warm is None or deviation.is_expected else warm
        warm = None
        deviation.begin(service.number)
        failure = _replay(journal, service, after, until, failures, deviation)
        if failure is not None and deviation.leave_out(failure):
            continue
        if failure is None or failure.number in failures or len(failures) >= MOST_FAILURES:
            break
        failures[failure.number] = failure
        if failure.is_of_surroundings and not _may_leave_out(journal, failure, deviation):
            break  # without it, others would fail that have nothing to do with it
    refused = [one for _, one in sorted(failures.items()) if not _may_leave_out(journal, one, deviation)]
    if failure is not None and not refused:
        refused = [failure]
    if refused:
        raise UnreplayableError(journal.name, refused, deviation.left_out, deviation.dependents)
    if deviation.dependents:
        raise DependentError(journal.name, deviation.dependents, deviation.left_out)
    for number, one in failures.items():
        why, what = repr(one.error), one.event.description
        log("event left out", level=logging.WARNING, number=number, description=what, reason=why)
        journal.void(number, why)
    return service


def _may_leave_out(journal: Journal, failure: Failure, deviation: Deviation) -> bool:
    """Has nobody been told that the event happened?"""
    is_new = failure.number >= journal.last_batch() and journal.applying.never_applied(failure.number)
    return is_new and not deviation.is_expected


def _replay(
    journal: Journal,
    service: Service,
    after: int,
    until: int | None,
    failures: Mapping[int, Failure],
    deviation: Deviation,
) -> Failure | None:
    """Apply the events after a snapshot. Returns the first that the strategy cannot take."""
    for number, event in journal.events(after, until):
        if number in failures or number in deviation.left_out or _depends(number, event, service, deviation):
            if event.kind != "fired":
                continue
            event = Event("dropped", event.at, key=event.key)
        journal.applying.begin(number, event)
        try:
            deviation.follow(number, service.apply(event), service.number)
        except BaseException as error:  # a strategy may raise anything
            return Failure(number, event, error)
        finally:
            journal.applying.end()
    return None


def _depends(number: int, event: Event, service: Service, deviation: Deviation) -> bool:
    """Does the event not fit without those that are left out? It is left out too, or noted. One that does not fit
    changes nothing, so the replay goes on and finds them all."""
    misfit = service.misfit(event) if deviation.left_out else None
    if misfit is None:
        return False
    dependent = Failure(number, event, StrategyError(misfit))
    if not deviation.leave_out(dependent):
        deviation.dependents.append(dependent)
    return True


def _from_snapshot(journal: Journal, begin: Callable[[], Service], until: int | None) -> Warm:
    number, state = newest_snapshot(journal, until)
    service = begin()
    service.load_state(state)
    return Warm(number, service)


def newest_snapshot(journal: Journal, until: int | None = None) -> tuple[int, dict[str, Any]]:
    """The newest snapshot that can be read: the event after which it was taken, and the state."""
    for number in reversed(journal.snapshots()):
        if until is None or number <= until:
            try:
                return number, journal.load_snapshot(number)
            except DamagedError as error:
                log("snapshot damaged", level=logging.ERROR, number=number, reason=str(error))
    raise JournalError(
        f"No snapshot of the journal in {journal.name} can be read. Nothing was changed. Restore it from a backup."
    )
