"""A journal that is there already, replayed to where its service was. What cannot be replayed is lost, left out or
replayed by another version only where the operator said so."""

import json
import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from polytempo.core.errors import UserError
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.leaving_out import leave_out_options
from polytempo.serve.journal.recovery import Deviation, Warm, newest_snapshot, recover
from polytempo.serve.paths import STATUS
from polytempo.serve.state.events import Event
from polytempo.serve.state.service import Service
from polytempo.serve.storage.errors import DamagedError, JournalError
from polytempo_client.logs import log

RENUMBERED_BY = 10**12
"""When events were lost or left out, orders are numbered so far ahead that no client's old task is taken for a new one,
however many they were: at a thousand orders a second this many take thirty years."""


@dataclass(frozen=True)
class Consent:
    """What the operator allows a start to do to the journal."""

    lose_tail: bool = False
    """Lose the events that cannot be replayed, and all after them."""
    accept_version: bool = False
    """Replay with this version of the code what another one wrote."""
    leave_out: tuple[range, ...] = ()
    """Events to go on without. The first of a range must have failed, or a process must have died in it; of the others
    those are left out that cannot be taken."""
    unproven: bool = False
    """Leave the first event of each range out although nothing is known to be wrong with it: a backup does not tell
    what its service died in."""

    def leaves_out(self, number: int) -> bool:
        return any(number in events for events in self.leave_out)


NO_CONSENT = Consent()
MOVED = "moved"
"""The name of the record that a journal was moved elsewhere."""


def continued(
    journal: Journal,
    begin: Callable[[], Service],
    versions: Mapping[str, str],
    consent: Consent,
    warm: Warm | None = None,
) -> Service:
    """The service after its last event. ``versions`` are those of the code that replays; ``warm`` is a state from which
    it may go on."""
    check_not_moved(journal)
    other_version = journal.about["versions"] != versions
    new = _newly_left_out(journal, consent.leave_out)
    known = _last_known_event(journal)
    if known > journal.last and not consent.lose_tail:
        raise JournalError(
            f"The journal in {journal.name} ends at event {journal.last}, and event {known} had happened: the "
            "database has lost its end. Nothing was changed. Restore it from a backup, or start with --lose-tail."
        )
    until = _end_of_replay(journal, versions, consent)
    suspects = {events.start for events in new} if consent.unproven else journal.applying.suspects
    known_bad = {number for number in suspects if any(number in events for events in new)}
    deviation = Deviation(known_bad, new, journal.outcomes() if other_version else None)
    try:
        service = recover(journal, begin, until, deviation, warm)
    except DamagedError as error:
        if not consent.lose_tail:
            raise
        until = error.number - 1
        service = recover(journal, begin, until, deviation)
    _check_faulty(journal, [events.start for events in new if events.start <= until], deviation)
    left_out = sorted(deviation.left_out)
    lost = max(journal.last, known) - until
    if other_version and until > (journal.newest_snapshot() or 0):
        _tell_deviation(deviation, until)
    if lost or left_out or deviation.last_common_order is not None:
        event = Event(
            "renumbered", service.now, number=service.number + RENUMBERED_BY, since=deviation.last_common_order
        )
        _write_renumbered(journal, event, until, lost, [one for one in left_out if one <= until])
        service.apply(event)
    if other_version:
        _begin_for_version(journal, service, versions)
    journal.applying.clear(journal.last)
    return service


def _write_renumbered(journal: Journal, event: Event, until: int, lost: int, left_out: Sequence[int]) -> None:
    """Write the event with which the service goes on, and what was left out or lost before it."""
    records = _mark_left_out(journal, left_out)
    if lost:
        log("events lost", level=logging.WARNING, count=lost)
        journal.replace_tail(until, event)
    else:
        journal.append([event])
    for record in records:
        told = {"number": record["event"], "description": record["description"]}
        log("event left out", level=logging.WARNING, **told, reason="--leave-out")


def _begin_for_version(journal: Journal, service: Service, versions: Mapping[str, str]) -> None:
    """Let nothing remain that another version of the code would have to replay."""
    if newest_snapshot(journal)[0] != journal.last:
        journal.snapshot(service.save_state())
    journal.forget_before_last_snapshot()
    journal.describe(journal.about | {"versions": dict(versions)})


def code_of(versions: Mapping[str, str]) -> int:
    """A number for a version of the code."""
    return zlib.crc32(json.dumps(dict(versions), sort_keys=True).encode())


def _end_of_replay(journal: Journal, versions: Mapping[str, str], consent: Consent) -> int:
    """The last event that may be replayed."""
    if journal.about["versions"] != versions and not consent.accept_version:
        return _end_for_other_version(journal, versions, consent)
    applying, newest = journal.applying, journal.newest_snapshot() or 0
    applying.use_code(code_of(versions))
    fatal = applying.fatal_event or (applying.named if consent.lose_tail else None)
    if fatal is None or consent.leaves_out(fatal) or not newest < fatal <= journal.last:
        return journal.last
    if consent.lose_tail:
        return fatal - 1
    applying.try_again()
    applying.name(fatal)
    raise JournalError(
        f"Event {fatal} ({journal.description_of(fatal)}) was being applied when the server on the journal in "
        f"{journal.name} last ended, and again when it was replayed: the strategy hangs, uses up the memory or "
        f"ends the process. Nothing was changed. Start with {leave_out_options({fatal}, consent.leave_out)} to go on "
        "without it; mend the strategy and start with --accept-version; start again to try once more; or, as a last "
        f"resort, start with --lose-tail to lose event {fatal} and everything after it."
    )


def _newly_left_out(journal: Journal, given: Sequence[range]) -> tuple[range, ...]:
    """Those that do not begin with an event that is left out already: a start may be repeated with the same options."""
    newest = journal.newest_snapshot() or 0
    old = {row["event"] for row in journal.about.get("left_out", ()) if row["event"] <= newest}
    new = tuple(events for events in given if events.start not in journal.voided() | old)
    for events in new:
        if not newest < events.start <= journal.last:
            raise UserError(
                f"Event {events.start} cannot be left out: the journal in {journal.name} replays events "
                f"{newest + 1} to {journal.last}. Give the number that the error names."
            )
    return new


def _check_faulty(journal: Journal, numbers: Sequence[int], deviation: Deviation) -> None:
    """Leave out nothing that is in order."""
    for number in numbers:
        if number not in deviation.left_out:
            raise UserError(
                f"Event {number} ({journal.description_of(number)}) cannot be left out: nothing is wrong with it. The "
                "strategy has taken it again, and no server died in it. Nothing was changed. Give the number that the "
                "error names, or start without --leave-out."
            )


def _mark_left_out(journal: Journal, numbers: Sequence[int]) -> list[dict[str, Any]]:
    """Mark the events as void, with a record that outlasts them: both are written with the next event. Returns the
    records."""
    when = datetime.now(UTC).isoformat(timespec="seconds")
    records = [{"event": number, "description": journal.description_of(number), "when": when} for number in numbers]
    if records:
        kept = [row for row in journal.about.get("left_out", ()) if row["event"] not in numbers]
        journal.marks.about["left_out"] = [*kept, *records]
        journal.marks.void |= dict.fromkeys(numbers, f"left out by the operator on {when}")
    return records


def _tell_deviation(deviation: Deviation, last: int) -> None:
    if deviation.first_event is None:
        log("version accepted", level=logging.WARNING, number=last, reason="no difference was found")
    else:
        log("version accepted", level=logging.WARNING, number=last, differs_from_event=deviation.first_event)


def _end_for_other_version(journal: Journal, versions: Mapping[str, str], consent: Consent) -> int:
    """The last event that this version may go on from without a replay: a snapshot's."""
    newest, _ = newest_snapshot(journal)
    tail = journal.last - newest
    if tail and not consent.lose_tail:
        changed = [name for name in versions if journal.about["versions"].get(name) != versions[name]]
        died_in, advice = journal.applying.died_in, "Start and stop the old version once, which makes a snapshot; or s"
        if died_in is not None:
            advice = f"It died in event {died_in} ({journal.description_of(died_in)}). S"
        raise JournalError(
            f"The journal in {journal.name} was written by another version ({', '.join(changed)} changed), which "
            f"did not stop cleanly: {tail} events after its last snapshot are not replayed bit for bit. {advice}tart "
            "with --accept-version to replay them with this version, with --leave-out EVENT as well for what it cannot "
            "take; or with --lose-tail to lose them."
        )
    return newest


def check_not_moved(journal: Journal) -> None:
    """A service that goes on elsewhere must not go on here as well."""
    if moved := journal.about.get(MOVED):
        raise JournalError(
            f"The service in {journal.name} was moved to {moved['to']} ({moved['when']}). Nothing was changed. Start "
            "it from there."
        )


def _last_known_event(journal: Journal) -> int:
    """The last event that the status file tells of; 0 if there is none, or if events were lost or erased since."""
    try:
        status = json.loads((journal.directory / STATUS).read_text())
        events: int = status["journal"]["events"]
        return events if status.get("timeline", "") == journal.timeline else 0
    except (OSError, ValueError, LookupError, TypeError):
        return 0
