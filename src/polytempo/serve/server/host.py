"""The one thread on which things happen: journal first, then the strategy, then the reply. What arrives while it
writes forms the next group, which is written with one sync."""

import logging
import queue
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch

from polytempo.serve.journal.opening import Opened
from polytempo.serve.journal.recovery import recover
from polytempo.serve.journal.snapshots import Snapshots, keep_state
from polytempo.serve.server import messages
from polytempo.serve.server.clock import Clock
from polytempo.serve.server.decisions import Decision, Refusal, Reply, strategy_failure
from polytempo.serve.server.endings import HostEnding
from polytempo.serve.server.expiry import Expiry
from polytempo.serve.server.handlers import Handlers
from polytempo.serve.server.narration import apply_and_log, details
from polytempo.serve.server.presence import Presence
from polytempo.serve.server.pulse import Health, Pulse
from polytempo.serve.server.refusals import RefusalTracker
from polytempo.serve.server.refusing import Refusing
from polytempo.serve.server.replies import event_replies
from polytempo.serve.server.requests import TAKES_OVER, Request, next_group, release_all
from polytempo.serve.server.shared import Shared
from polytempo.serve.server.status import WRITTEN_EVERY, StatusFile, StatusSources
from polytempo.serve.state.events import Event
from polytempo.serve.state.outcome import outcome_of
from polytempo.serve.state.service import Dispatched
from polytempo.serve.storage.errors import JournalError, LostLeadError
from polytempo_client.logs import log

JOURNAL_RETRY = 1.0
"""Seconds until something due is tried again when the journal could not be written."""


class Host:
    """Runs a service on its journal. ``submit`` may be called from any thread; everything else happens on the host's
    own."""

    def __init__(self, opened: Opened, shared: Shared, seconds: Callable[[], float] = time.monotonic) -> None:
        self.journal, self.service, self.begin = opened.journal, opened.service, opened.begin
        self.shared = shared
        self.presence = Presence()
        self.refusals = RefusalTracker()
        self.handlers = Handlers(shared, self.presence, self.refusals)
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._stopping = False
        self._ending = HostEnding()
        self.clock = Clock(self.service.now, seconds)
        self.refusing = Refusing(shared, self.presence, self.refusals, self.clock)
        self._expect_members()
        self.snapshots = Snapshots(self.journal)
        self._status = StatusFile(self.journal.directory)
        self.error: BaseException | None = None
        self._expiry = Expiry()
        # A daemon: a method that never comes back must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="polytempo-host", daemon=True)
        self.pulse = Pulse(self.journal.applying, self._thread)

    def start(self) -> None:
        self._thread.start()

    def health(self) -> Health:
        is_healthy = self._thread.is_alive() and not self.shared.meters.journal_failing and not self.is_stuck()
        return Health(is_healthy, self.pulse.age())

    def is_stuck(self) -> bool:
        """Has its thread not come back from something for too long?"""
        return self.pulse.busy() >= self.shared.operations.watchdog.event_seconds

    def wait_for_end(self, seconds: float) -> bool:
        """Wait for its thread to end, up to so many seconds. Returns whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def status(self) -> dict[str, Any]:
        """As of a moment ago."""
        return self._status.last | {"draining": self._stopping}

    def submit(self, request: Request) -> None:
        self._requests.put(request)

    def tick(self) -> None:
        """Look at the clock again."""
        self._requests.put(None)

    def begin_stop(self, ending: HostEnding | None = None) -> None:
        """End after what has arrived, tell clients to come again, and keep the state."""
        if ending is not None:
            self._ending = ending
        self._stopping = True
        self.tick()

    def stop(self) -> None:
        """Stop, however long it takes."""
        self.begin_stop()
        self._thread.join()

    # The loop.

    def _run(self) -> None:
        torch.set_num_threads(1)  # bit-identical sums
        try:
            while not self._stopping:
                self.pulse.rest()
                self.handle(next_group(self._requests, self._seconds_to_next()))
            arrived = self._requests.qsize()
            while arrived > 0 and (group := next_group(self._requests, 0.0)):
                self.handle(group)
                arrived -= len(group)
            self._end_sessions(self._ending.reason)
            if self._ending.with_snapshot:
                self.snapshots.finish(self.service)
            self.journal.confirm()
        except LostLeadError as error:
            self.error = error
            log("lead lost", level=logging.ERROR, number=self.journal.last, reason=str(error))
            self._end_sessions(TAKES_OVER)
        except BaseException as error:
            self.error = error
            log("stopped", level=logging.CRITICAL, reason=str(error))
            self._keep_state()
        finally:
            self._end_sessions()
            release_all(self._requests)
            self.write_status(stopping=True)
            self.shared.access.settle(5.0)
            self.snapshots.close(wait=not isinstance(self.error, LostLeadError))
            self.journal.close(self._ending.successor)

    def _keep_state(self) -> None:
        """What ended the host may be mended in the next version of a method, which cannot replay: leave it as little as
        possible."""
        try:
            keep_state(self.journal, self.begin, self.journal.last)
        except BaseException as error:
            log("snapshot failed", level=logging.ERROR, reason=str(error))

    def _end_sessions(self, reason: str | None = None) -> None:
        """With a reason, clients are told to come again."""
        for session in self.presence.sessions.values():
            if reason is not None:
                session.send(messages.refusal(reason, again=True))
            session.end()
        self.shared.outbox.flush()

    def write_status(self, stopping: bool = False) -> None:
        """At most once a second, unless the server stops."""
        sources = StatusSources(
            self.service, self.clock(), self.presence.sessions, self.journal, self.shared, self.refusals.refusals
        )
        self._status.write(sources, stopping)

    def _try_journal(self) -> None:
        """If nobody comes, nothing else would tell whether it can be written again, or others what has happened."""
        try:
            if self.shared.meters.journal_failing:
                self.journal.check_writable()
                self.shared.meters.journal_failing = False
            self.journal.confirm()
        except LostLeadError:
            raise
        except JournalError as error:
            log("journal failed", level=logging.ERROR, reason=str(error))
            self.shared.meters.journal_failing = True

    def _seconds_to_next(self) -> float:
        due = [*self.presence.deadlines(), *(timer for timer in [self.service.next_timer()] if timer is not None)]
        soonest = JOURNAL_RETRY if self.shared.meters.journal_failing else 0.0
        return min([WRITTEN_EVERY, *(max(at - self.clock(), soonest) for at in due)])

    def handle(self, requests: list[Request]) -> None:
        """Deal with requests, then with what is due."""
        self.pulse.beat()
        left = requests
        try:
            while left:
                left = self._handle_group(left)
        finally:
            for request in requests:
                request.release()
        if not requests:
            self._try_journal()
        self._fire_timers()
        self._expire_absent()
        self._expire_silent()
        self.shared.outbox.flush()
        self.write_status()
        self.snapshots.keep_up(self.service)

    def _handle_group(self, requests: list[Request]) -> list[Request]:
        """Decide, journal, apply, reply. What a client asks for twice in one group is left for the next."""
        events: list[tuple[Request, Event]] = []
        later: list[Request] = []
        clients: set[int] = set()
        for request in requests:
            if request.session.client in clients:
                later.append(request)
                continue
            decision = self._decide(request)
            self.refusing.end_displaced()
            if isinstance(decision, Event):
                clients.add(request.session.client)
                events.append((request, decision))
            elif isinstance(decision, Refusal):
                self.refusing.refuse(request, decision)
            else:
                self._send(decision)
        if events and self._write([event for _, event in events], [request for request, _ in events]):
            self._apply(events)
        return later

    def _decide(self, request: Request) -> Decision:
        try:
            return self.handlers.decide(request, self.service, self.clock())
        except BaseException as error:  # in what it would be served now
            return self._no_reply(request.session.client, error)

    # Events.

    def _write(self, events: list[Event], requests: list[Request]) -> bool:
        """Make the events safe. If that fails nothing has happened, and whoever asked is told to try again."""
        self.pulse.beat()
        try:
            self.journal.append(events)
            self.shared.meters.journal_failing = False
        except LostLeadError:
            raise
        except (JournalError, MemoryError) as error:
            self.shared.meters.journal_failing = True
            log("journal failed", level=logging.ERROR, reason=str(error))
            self.shared.meters.refusals["journal"] += len(requests)
            for request in requests:
                reason = "the server cannot write its journal at the moment"
                request.session.send(messages.refusal(reason, again=True), request.head.request)
                request.session.end()
            return False
        return True

    def _apply(self, events: list[tuple[Request, Event]]) -> None:
        first = self.journal.last - len(events) + 1
        for number, (request, event) in enumerate(events, first):
            orders = self._let_happen(number, event)
            if isinstance(orders, BaseException):
                self.refusing.refuse(request, strategy_failure("could not take it", orders))
                self._disconnect_all()
                return
            self._tell(event, orders, request)

    def _let_happen(self, number: int, event: Event) -> list[Dispatched] | BaseException:
        """Apply an event of the journal. If the strategy fails, the event is rolled back: returns why."""
        self.journal.applying.begin(number, event)
        try:
            orders = apply_and_log(self.service, event)
            outcome = outcome_of(orders, self.service.number)  # not of orders that cannot be sent
            self.journal.applying.reach(number)
        except BaseException as error:  # a strategy may raise anything
            self.shared.meters.strategy_failures += 1
            self._roll_back(number, event, error)
            self.journal.applying.reach(self.journal.last)
            return error
        finally:
            self.journal.applying.end()
            self.pulse.beat()
        self.journal.marks.outcomes[number] = outcome
        return orders

    def _tell(self, event: Event, orders: list[Dispatched], request: Request | None = None) -> None:
        """Send the event's orders, and the reply to whoever asked. The event is safe, whatever comes of that."""
        encodings, sessions = self.shared.operations.encodings, self.presence.sessions
        try:
            if request is not None:
                self._note(event)
            for reply in event_replies(self.service, sessions, request, event, orders, encodings):
                self._send(reply)
        except BaseException as error:  # the strategy has no model to give
            refusal = self._no_reply(event.client, error)
            if request is not None:
                self.refusing.refuse(request, refusal)

    def _note(self, event: Event) -> None:
        """What a client asked for has happened."""
        log(event.kind, client=event.client, at=event.at, **details(self.service, event))
        if event.kind == "left":
            self.presence.stop_expecting(event.client)
        if event.kind == "updated":
            self.refusals.end_row(event.client)

    def _roll_back(self, number: int, event: Event, error: BaseException) -> None:
        """The strategy failed half-way through an event: leave the event out, and go back to the journal's state."""
        log("rolled back", level=logging.ERROR, number=number, description=event.description, error=error)
        self.journal.applying.refuse(number)
        self.journal.void(number, repr(error))
        # There may be no memory for two states: let go of the broken one, which the error's frames hold too.
        traceback.clear_frames(error.__traceback__)
        self.service = self.begin()
        self.service = recover(self.journal, self.begin)

    def _disconnect_all(self) -> None:
        """Let everybody connect anew."""
        self.presence.disconnect_all()
        self._expect_members()

    def _expect_members(self) -> None:
        members = [client for client in self.service.members if self.service.is_member(client)]
        self.presence.expect(members, self.clock() + self.shared.operations.patience)

    # Replies.

    def _send(self, reply: Reply) -> None:
        for session, message, request in reply:
            session.send(message, request)

    def _no_reply(self, client: int, error: BaseException) -> Refusal:
        log("strategy failed", level=logging.ERROR, client=client, error=error)
        return strategy_failure("has no reply", error)

    # What is due.

    def _fire_timers(self) -> None:
        """As many as there are now: a strategy that sets timers for now, again and again, must not starve others."""
        for _ in range(len(self.service.timers)):
            at, now = self.service.next_timer(), self.clock()
            if at is None or at > now:
                return
            event = Event("fired", now, key=self.service.timers[0][2])
            if not self._write([event], []):
                return
            orders = self._let_happen(self.journal.last, event)
            if isinstance(orders, BaseException):  # this timer is gone, and others may be due
                self._disconnect_all()
                continue
            level = logging.INFO if orders else logging.DEBUG
            log("fired", level=level, key=event.key, at=now, orders=len(orders))
            self._tell(event, orders)

    def _expire_absent(self) -> None:
        """Clients that have been away for longer than the patience have left."""
        for client in self.presence.expired(self.clock()):
            if self._expiry.was_tried(client, self.service):
                self.presence.stop_expecting(client)
            elif not self._expire(client):
                return

    def _expire_silent(self) -> None:
        """A client that is connected and neither answers its task nor asks for one must not hold others up for ever."""
        limit, sessions = self.shared.operations.task_seconds, self.presence.sessions
        for client in self._expiry.look_for_silent(self.service, sessions, self.clock(), limit):
            session = sessions[client]
            if not self._expire(client):
                return
            session.send(messages.refusal(f"nothing was heard of this client for {limit:g} s", again=True))
            session.end()
            self.presence.disconnect(session)

    def _expire(self, client: int) -> bool:
        """The client has left. Returns whether to go on: not if the journal or the strategy could not take it."""
        event = Event("left", self.clock(), client)
        if not self._write([event], []):
            return False
        self._expiry.begin(client, self.service)
        self.presence.stop_expecting(client)
        self.refusals.remember_expired(client, self.service.open_task(client))
        log("expired", client=client, at=event.at)
        orders = self._let_happen(self.journal.last, event)
        if isinstance(orders, BaseException):
            self._disconnect_all()
            return False
        self._expiry.end(client)
        self._tell(event, orders)
        return True
