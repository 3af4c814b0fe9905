"""What a journal stands for: the state after any event that it holds, and what another strategy would have made of the
same arrivals."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polytempo.core.branch import branches
from polytempo.core.errors import UserError
from polytempo.core.model.vectors import trained_entries
from polytempo.core.status import Status
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.opening import beginning, code_versions, existing_journal, journal_objects, settings_of
from polytempo.serve.journal.proxies import check_needed
from polytempo.serve.journal.recovery import newest_snapshot
from polytempo.serve.journal.settings import ServiceSettings
from polytempo.serve.paths import JOURNAL
from polytempo.serve.state.events import Event, Push
from polytempo.serve.state.service import Service
from polytempo.serve.storage.errors import JournalError
from polytempo.strategies.base.explaining import explained
from polytempo.strategies.settings import StrategySettings


@dataclass
class Replayed:
    """A state that was rebuilt from a snapshot that the journal holds."""

    settings: StrategySettings
    service: Service
    event: int
    """Number of the last event."""
    from_event: int
    """Number of the last event in the snapshot. What is counted is counted from there on."""
    updates: int = 0
    """Updates on the way."""
    stale: int = 0
    """Sum of their staleness."""
    unasked: int = 0
    """What if: updates that this strategy had not asked for when they came, and did not get."""

    def figures(self) -> dict[str, Any]:
        strategy = self.service.strategy
        versions = [branch.version for _, branch in branches(strategy.save_state())]
        return {
            "event": self.event,
            "from_event": self.from_event,
            "uptime": self.service.now,
            "updates": self.updates,
            "unasked": self.unasked,
            "mean_staleness": self.stale / self.updates if self.updates else 0.0,
            "splits": len(strategy.splits()),
            "expansions": sum(it.kind == "expansion" for it in strategy.regroupings()),
            "merges": sum(it.kind == "merge" for it in strategy.regroupings()),
            "version": max(versions, default=None),
            "digest": self.service.digest(),
        }

    def apply(self, event: Event) -> None:
        with explained(self.service.strategy, f"event {self.event} ({event.description})"):
            self.service.apply(event)
        if event.kind == "updated":
            self.updates += 1
            self.stale += self.service.members[event.client].staleness or 0


def replay(
    directory: Path,
    until: int | None = None,
    objects: Mapping[str, Any] | None = None,
    allowed: Collection[str] = (),
) -> Replayed:
    """The state after the last event, or after event ``until``. ``allowed`` is that of ``settings_of``. Of a journal of
    another version it is read, if there is a snapshot of it."""
    with _open(directory) as journal:
        settings = settings_of(journal, allowed)
        _check_holds(journal, until)
        start = journal.snapshots()[0] if _is_of_this_version(journal, settings) else _snapshot_at(journal, until)
        replayed = _loaded(journal, settings, objects, start, journal.load_snapshot(start))
        for _ in _walk(journal, replayed, until):
            pass
    return replayed


def newest(directory: Path, allowed: Collection[str] = ()) -> Replayed:
    """The state that the service in this directory, or on the journal in it, has now, from the newest snapshot: with as
    few events on the way as can be, and none in a journal of another version. ``allowed`` is that of
    ``settings_of``."""
    with _open(_journal_in(directory)) as journal:
        settings = settings_of(journal, allowed)
        if _is_of_this_version(journal, settings):
            number, state = newest_snapshot(journal)
        else:
            number = _snapshot_at(journal, None)
            state = journal.load_snapshot(number)
        replayed = _loaded(journal, settings, None, number, state)
        for _ in _walk(journal, replayed, None):
            pass
    return replayed


@dataclass(frozen=True)
class WhatIf:
    """What happened, and what another strategy would have made of it. Both begin and end at the same event."""

    real: Replayed
    other: Replayed


def what_if(
    directory: Path,
    method: StrategySettings,
    until: int | None = None,
    objects: Mapping[str, Any] | None = None,
    allowed: Collection[str] = (),
) -> WhatIf:
    """The same arrivals under another strategy, from the model of the oldest snapshot on. The same clients come and go
    at the same times. Each update brings the same difference, to whatever model this strategy had given its client,
    the same report of the client's jury, and the same answers to questions that both strategies ask. An update that
    this strategy had not asked for by then is left out. ``allowed`` is that of ``settings_of``, for the journal's own
    strategy."""
    with _open(directory) as journal:
        settings = settings_of(journal, allowed)
        given = journal_objects(journal, settings, objects)
        check_needed(method.strategy, given, directory)
        _check_holds(journal, until)
        if not _is_of_this_version(journal, settings):
            raise JournalError(
                f"{_of_another_version(journal)} To try another strategy, take a journal that this version has written."
            )
        oldest = journal.snapshots()[0]
        real = _loaded(journal, settings, given, oldest, journal.load_snapshot(oldest))
        other = Replayed(method, _as_found(real.service, method, given), real.event, real.event)
        for event in _walk(journal, real, until):
            other.event = real.event
            _fire_timers(other, event.at)
            if event.push is None:
                _tell(other, event)
            else:
                _move(real.service.update_of(event.client, event.push).delta, event, other)
    return WhatIf(real, other)


def _journal_in(directory: Path) -> Path:
    """The journal's directory, given the service's or the journal's own."""
    for found in (directory / JOURNAL, directory):
        if Journal.exists(found):
            return found
    raise UserError(
        f"{directory} holds no journal. Expected the --dir of `polytempo serve`, or the {JOURNAL} directory in it."
    )


@contextmanager
def _open(directory: Path) -> Iterator[Journal]:
    """A journal to read. Its server may go on writing, and forget what is being read."""
    journal = existing_journal(directory)
    before = journal.snapshots()
    try:
        yield journal
    except JournalError:
        if journal.snapshots() == before:
            raise
        raise UserError("The server made a snapshot meanwhile and forgot what was being read. Try again.") from None
    finally:
        journal.close()


def _check_holds(journal: Journal, until: int | None) -> None:
    oldest = journal.snapshots()[0]
    if until is not None and not oldest <= until <= journal.last:
        raise UserError(f"The journal holds the states after events {oldest} to {journal.last}, not after {until}.")


def _is_of_this_version(journal: Journal, settings: ServiceSettings) -> bool:
    """Does this version replay the journal's events to the same bits?"""
    versions: dict[str, str] = journal.about["versions"]
    return versions == code_versions(settings)


def _snapshot_at(journal: Journal, until: int | None) -> int:
    """The snapshot after this event, or after the last one: there is nothing to replay behind it."""
    number = journal.last if until is None else until
    snapshots = journal.snapshots()
    if number in snapshots:
        return number
    if until is not None:
        shown = ", ".join(map(str, snapshots))
        raise JournalError(f"{_of_another_version(journal)} It can read the states after events {shown}.")
    raise JournalError(
        f"{_of_another_version(journal)} Use the version that wrote it; or start and stop the service once with this "
        "version, which makes a snapshot that it can read."
    )


def _of_another_version(journal: Journal) -> str:
    return (
        f"The journal in {journal.name} was written by another version of the code, or on another kind of "
        "machine. This version cannot replay its events bit for bit."
    )


def _loaded(
    journal: Journal, settings: ServiceSettings, objects: Mapping[str, Any] | None, event: int, state: dict[str, Any]
) -> Replayed:
    """The state of the snapshot after this event."""
    torch.set_num_threads(1)  # as in the server
    service = beginning(journal, settings, objects)()
    service.load_state(state)
    return Replayed(settings, service, event, event)


def _walk(journal: Journal, replayed: Replayed, until: int | None) -> Iterator[Event]:
    """Every event, before it is applied."""
    for number, event in journal.events(replayed.event, until):
        replayed.event = number
        yield event
        replayed.apply(event)


def _as_found(real: Service, method: StrategySettings, objects: Mapping[str, Any] | None) -> Service:
    """Another strategy with the model and the clients of a service."""
    service = Service(method.begin(method.make(), real.first_model().clone(), real.schema, objects=objects))
    present = [client for client in real.members if real.is_member(client)]
    with explained(service.strategy, f"the clients of the journal's oldest snapshot ({len(present)} are there)"):
        for client in present:
            service.apply(Event("joined", real.now, client))
        for client in present:
            if real.members[client].status != Status.PAUSED:
                service.apply(Event("ready", real.now, client))
    return service


def _fire_timers(other: Replayed, now: float) -> None:
    while (at := other.service.next_timer()) is not None and at <= now:
        other.apply(Event("fired", at, key=other.service.timers[0][2]))


def _tell(other: Replayed, event: Event) -> None:
    """Tell of clients that come, go, pull and ask for work; timers and numbers are this strategy's own."""
    waits = event.kind == "ready" and other.service.members[event.client].status == Status.PAUSED
    if waits or event.kind in ("joined", "left", "pulled"):
        other.apply(event)


def _move(delta: torch.Tensor, event: Event, other: Replayed) -> None:
    """Let the other strategy have an update that moves by as much as the real one."""
    push, flight = event.push, other.service.flights.get(event.client)
    assert push is not None
    if flight is None:
        other.unasked += 1
        return
    questions = flight.order.questions
    if flight.order.candidates is not None or any(name not in push.answers for name in questions):
        raise UserError(
            "This strategy asks clients what the journal has no answer to (which candidate fits, or a question). Only "
            "strategies that ask for nothing but training, or for what the journal's own strategy asked, can be tried "
            "on a journal."
        )
    trained = trained_entries(other.service.schema, flight.order.mask, flight.order.trainable)
    weights = flight.model + (delta if trained is None else torch.where(trained, delta, 0.0))
    answers = {name: push.answers[name] for name in questions}
    jury = None if flight.order.personal is None else push.jury
    again = Push(flight.number, flight.latest, weights, push.samples, push.steps, None, answers, push.ready, jury=jury)
    other.apply(Event("updated", event.at, event.client, again))
