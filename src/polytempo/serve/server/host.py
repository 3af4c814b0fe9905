"""The one thread on which things happen: journal first, then the strategy, then the answer. What arrives while it
writes forms the next group, which is written with one sync."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from polytempo.core.orders import Send, Train
from polytempo.core.status import Status
from polytempo.serve.access.live import Access
from polytempo.serve.access.roster import in_quarantine
from polytempo.serve.journal.database import JournalError
from polytempo.serve.journal.opening import Opened
from polytempo.serve.journal.recovery import recover
from polytempo.serve.journal.snapshots import Snapshots
from polytempo.serve.logs import log
from polytempo.serve.protocol import messages
from polytempo.serve.server.answers import answer_as_now, say_place, send_all, welcome
from polytempo.serve.server.checks import Refused, Withdrawn, check_push
from polytempo.serve.server.clock import Clock
from polytempo.serve.server.meters import Meters
from polytempo.serve.server.narration import apply_and_log, details
from polytempo.serve.server.operations import Operations
from polytempo.serve.server.refusals import Conduct
from polytempo.serve.server.requests import Request, Session, next_group
from polytempo.serve.server.status import WRITTEN_EVERY, StatusFile
from polytempo.serve.state.events import Event, Kind, Push
from polytempo.serve.state.service import Dispatched

JOURNAL_RETRY = 1.0
"""Seconds until something due is tried again when the journal could not be written."""
RESTARTS = "the server restarts"


class Host:
    """Runs a service on its journal. ``submit`` may be called from any thread; everything else happens on the host's
    own."""

    def __init__(
        self,
        opened: Opened,
        operations: Operations,
        access: Access,
        seconds: Callable[[], float] = time.monotonic,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        self.journal, self.service, self._begin = opened.journal, opened.service, opened.begin
        self.operations = operations
        """Replaced as a whole when they change."""
        self.access = access
        self.meters = Meters()
        self._conduct = Conduct()
        self._flush = flush
        """Called when the messages of a group have been handed over."""
        self._requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._stopping = False
        self.clock = Clock(self.service.now, seconds)
        self.sessions: dict[int, Session] = {}
        self._absent = self._everybody_absent()
        self.snapshots = Snapshots(self.journal)
        self._status = StatusFile(self.journal.directory)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="polytempo-host")

    def start(self) -> None:
        self._thread.start()

    def well(self) -> bool:
        """Does it live, and can it write its journal?"""
        return self._thread.is_alive() and not self.meters.journal_failing

    def said(self) -> dict[str, Any]:
        """How it is doing, as of a moment ago."""
        return self._status.said | {"draining": self._stopping}

    def submit(self, request: Request) -> None:
        self._requests.put(request)

    def tick(self) -> None:
        """Look at the clock again."""
        self._requests.put(None)

    def stop(self) -> None:
        """End after what has arrived, tell clients to come again, and keep the state."""
        self._stopping = True
        self.tick()
        self._thread.join()

    # The loop.

    def _run(self) -> None:
        torch.set_num_threads(1)  # bit-identical sums
        try:
            while not self._stopping:
                self.handle(next_group(self._requests, self._seconds_to_next()))
            arrived = self._requests.qsize()
            while arrived > 0 and (group := next_group(self._requests, 0.0)):
                self.handle(group)
                arrived -= len(group)
            for session in self.sessions.values():
                session.send(messages.refusal(RESTARTS, again=True))
                session.end()
            self._flush()
            self.snapshots.finish(self.service)
        except BaseException as error:
            self.error = error
            log("stopped", level=logging.CRITICAL, reason=str(error))
        finally:
            for session in self.sessions.values():
                session.end()
            self._flush()
            self._say(stopping=True)
            self.access.settle(5.0)
            self.snapshots.close()
            self.journal.close()

    def _say(self, stopping: bool = False) -> None:
        refusals = self._conduct.refusals
        self._status.write(
            self.service, self.clock(), self.sessions, self.journal, self.meters, self.access, refusals, stopping
        )

    def _try_journal(self) -> None:
        """Whether it can be written again: if nobody comes, nothing else would tell."""
        with suppress(JournalError):
            self.journal.check_writable()
            self.meters.journal_failing = False

    def _seconds_to_next(self) -> float:
        due = [*self._absent.values(), *(timer for timer in [self.service.next_timer()] if timer is not None)]
        soonest = JOURNAL_RETRY if self.meters.journal_failing else 0.0
        return min([WRITTEN_EVERY, *(max(at - self.clock(), soonest) for at in due)])

    def handle(self, requests: list[Request]) -> None:
        """Deal with requests, then with what is due."""
        left = requests
        while left:
            left = self._handle_group(left)
        for request in requests:
            request.release()
        if self.meters.journal_failing and not requests:
            self._try_journal()
        self._fire_timers()
        self._send_away()
        self._flush()
        self._say()
        self.snapshots.keep_up(self.service)

    def _handle_group(self, requests: list[Request]) -> list[Request]:
        """Check, journal, apply, answer. What a client asks for twice in one group is left for the next."""
        events: list[tuple[Request, Event]] = []
        later: list[Request] = []
        clients: set[int] = set()
        for request in requests:
            if request.session.client in clients:
                later.append(request)
                continue
            try:
                event = self._event_of(request)
            except Refused as refusal:
                void = isinstance(refusal, Withdrawn)
                self._refuse(request, str(refusal), void)
                if not (void and self._conduct.forgives(request.session.client, request.head.push.task)):
                    self._judge(request, str(refusal))
                continue
            except Exception as error:  # in what it would be served now
                self._has_no_answer(request, error)
                continue
            if event is not None:
                clients.add(request.session.client)
                events.append((request, event))
        if events and self._write([event for _, event in events], [request for request, _ in events]):
            self._apply(events)
        return later

    def _write(self, events: list[Event], requests: list[Request]) -> bool:
        """Make the events safe. If that fails nothing has happened, and whoever asked is told to try again."""
        try:
            self.journal.append(events)
            self.meters.journal_failing = False
        except JournalError as error:
            self.meters.journal_failing = True
            log("journal failed", level=logging.ERROR, reason=str(error))
            self.meters.refusals["journal"] += len(requests)
            for request in requests:
                reason = "the server cannot write its journal at the moment"
                request.session.send(messages.refusal(reason, again=True), request.head.request)
            return False
        return True

    def _apply(self, events: list[tuple[Request, Event]]) -> None:
        for place, (request, event) in enumerate(events):
            try:
                orders = apply_and_log(self.service, event)
            except Exception as error:
                self._take_back(self.journal.last - len(events) + place + 1, request, error)
                return
            try:
                self._answer(request, event, orders)
            except Exception as error:  # the event is safe, but the strategy has no model to give
                self._has_no_answer(request, error)

    def _has_no_answer(self, request: Request, error: Exception) -> None:
        log("strategy failed", level=logging.ERROR, client=request.session.client, error=error)
        self._refuse(request, f"the strategy has no answer: {error!r}")

    def _take_back(self, number: int, request: Request | None, error: Exception) -> None:
        """The strategy failed half-way through an event: leave the event out, go back to the journal's state, and let
        everybody connect anew."""
        log("strategy failed", level=logging.ERROR, number=number, error=error)
        self.journal.void(number, repr(error))
        self.service = recover(self.journal, self._begin)
        if request is not None:
            reason = f"the strategy could not take it: {error!r}"
            self._refuse(request, reason)
            self._judge(request, reason)
        for session in self.sessions.values():
            session.end()
        self.sessions.clear()
        self._absent = self._everybody_absent()

    # Requests.

    def _event_of(self, request: Request) -> Event | None:
        """What the request makes happen; None if nothing does (it is then answered here)."""
        session, client = request.session, request.session.client
        if request.kind in ("gone", "expelled"):
            if self.sessions.get(client) is session:
                del self.sessions[client]
                if self.service.is_member(client):
                    patience = self.operations.patience if request.kind == "gone" else 0.0
                    self._absent[client] = self.clock() + patience
            return None
        if client in self.access.roster.quarantined:
            raise Refused(in_quarantine(self.access.roster.quarantined[client]))
        if request.kind == "wire":
            raise Refused(request.problem)
        if request.kind == "hello":
            before = self.sessions.get(client)
            if before is not None and before is not session:
                contested = self._conduct.replaced(client, self.clock())
                self.meters.refusals["contested" if contested else "replaced"] += 1
                log("contested" if contested else "replaced", level=logging.WARNING, client=client)
                before.send(messages.refusal("another session of this client has begun", replaced=True))
                before.end()
            self.sessions[client] = session
            self._absent.pop(client, None)
            if not self.service.is_member(client):
                return self._event("joined", client)
            welcome(self.service, self.sessions, request, self.operations.encodings)
            return None
        if self.sessions.get(client) is not session or not self.service.is_member(client):
            raise Refused("say hello first")
        if request.kind == "ready":
            return self._ready(request)
        if request.kind == "push":
            return self._push(request)
        if request.kind == "branch":
            say_place(self.service, request)
            return None
        return self._event("pulled" if request.kind == "pull" else "left", client)

    def _ready(self, request: Request) -> Event | None:
        client = request.session.client
        if client in self.service.flights:
            self._send_all(self.service.task_again(client), request)
        elif self.service.members[client].status == Status.READY:
            request.session.send(messages.accepted(), request.head.request)
        else:
            return self._event("ready", client)
        return None

    def _push(self, request: Request) -> Event | None:
        client, push = request.session.client, request.head.push
        flight = self.service.flights.get(client)
        if flight is None or flight.number != push.task:
            if push.task == 0 or push.task != self.service.members[client].answered:
                raise (Withdrawn if self._conduct.left_with(client, push.task) else Refused)(
                    f"task {push.task} is not yours, or it was withdrawn when you left"
                )
            log("repeated", client=client, task=push.task)
            answer_as_now(self.service, self.sessions, request)
            return None
        checked = check_push(push, request.body, flight, self.service.schema, self.operations)
        return self._event("updated", client, checked)

    def _event(self, kind: Kind, client: int = -1, push: Push | None = None, key: str = "") -> Event:
        return Event(kind, self.clock(), client, push, key)

    # Answers.

    def _answer(self, request: Request, event: Event, orders: list[Dispatched]) -> None:
        client = request.session.client
        log(event.kind, client=client, at=event.at, **details(self.service, event))
        if event.kind == "joined":
            welcome(self.service, self.sessions, request, self.operations.encodings)
            self._send_all(orders)
            return
        if event.kind == "left":
            self._absent.pop(client, None)
        if event.kind == "updated":
            self._conduct.taken(client)
        wanted = Send if event.kind == "pulled" else Train
        answered = self._send_all(orders, request, wanted)
        if not answered and event.kind == "pulled":
            answer_as_now(self.service, self.sessions, request)
        elif not answered:
            request.session.send(messages.accepted(), request.head.request)

    def _send_all(
        self, orders: list[Dispatched], request: Request | None = None, wanted: type[Train] | type[Send] = Train
    ) -> bool:
        return send_all(self.service, self.sessions, orders, request, wanted)

    def _refuse(self, request: Request, reason: str, void: bool = False) -> None:
        self.meters.refusals[request.kind] += 1
        log("refused", level=logging.WARNING, client=request.session.client, kind=request.kind, reason=reason)
        request.session.send(messages.refusal(reason, void=void), request.head.request)
        if request.kind == "wire":
            request.session.end()

    def _judge(self, request: Request, reason: str) -> None:
        """A client of which too much had to be refused is not heard any more; the server ends its sessions."""
        client = request.session.client
        if request.kind != "wire" and self.sessions.get(client) is not request.session:
            return  # it was on its way when we ended the session, which may be somebody else's fault
        if client in self.access.roster.quarantined:
            return
        too_much = self._conduct.refused(client, self.clock(), self.operations.quarantine)
        if too_much is not None:
            log("quarantined", level=logging.ERROR, client=client, reason=reason)
            self.access.quarantine(client, f"{too_much}, the last: {reason}")

    # What is due.

    def _fire_timers(self) -> None:
        while (at := self.service.next_timer()) is not None and at <= (now := self.clock()):
            key = self.service.timers[0][2]
            if not self._write([Event("fired", now, key=key)], []):
                return
            orders = apply_and_log(self.service, Event("fired", now, key=key))
            log("fired", level=logging.INFO if orders else logging.DEBUG, key=key, at=now, orders=len(orders))
            self._send_all(orders)

    def _send_away(self) -> None:
        """Clients that have been gone for longer than the patience have left."""
        now = self.clock()
        for client in [client for client, at in self._absent.items() if at <= now]:
            event = Event("left", now, client)
            if not self._write([event], []):
                return
            del self._absent[client]
            self._conduct.left(client, self.service.open_task(client))
            log("left", client=client, at=now)
            try:
                self._send_all(apply_and_log(self.service, event))
            except Exception as error:
                self._take_back(self.journal.last, None, error)
                return

    def _everybody_absent(self) -> dict[int, float]:
        deadline = self.clock() + self.operations.patience
        return {client: deadline for client in self.service.members if self.service.is_member(client)}
