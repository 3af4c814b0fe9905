"""What each kind of request comes to. A handler returns its decision. It sends nothing and leaves the service alone.

Two handlers change who is present. ``_greet`` connects the session and notes how models are encoded for it. ``_lose``
disconnects it and sets the time until which its client is expected back."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from polytempo.core.status import Status
from polytempo.serve.access.roster import in_quarantine
from polytempo.serve.server import messages
from polytempo.serve.server.checks import Refused, check_push
from polytempo.serve.server.decisions import Decision, Refusal, Reply, rolled_back
from polytempo.serve.server.presence import Presence
from polytempo.serve.server.refusals import RefusalTracker
from polytempo.serve.server.replies import (
    accepted_reply,
    current_reply,
    membership_reply,
    order_messages,
    welcome_reply,
)
from polytempo.serve.server.requests import AnyKind, Request
from polytempo.serve.server.shared import Shared
from polytempo.serve.state.events import Event
from polytempo.serve.state.service import Service
from polytempo_client.logs import log

Handler: TypeAlias = Callable[[Request, Service, float], Decision]
"""A request to the service as it is at this time."""

STRANGERS = frozenset({"gone", "expelled", "wire", "hello"})
"""Kinds of requests that need no hello before them."""


class Handlers:
    """Those of one host: a table from the kind of a request to what decides it."""

    def __init__(self, shared: Shared, presence: Presence, tracker: RefusalTracker) -> None:
        self._shared, self._presence, self._tracker = shared, presence, tracker
        self.table: dict[AnyKind, Handler] = {
            "gone": self._lose,
            "expelled": self._lose,
            "wire": lambda request, service, now: Refusal(request.problem),
            "hello": self._greet,
            "ready": self._order_work,
            "push": self._receive,
            "branch": lambda request, service, now: membership_reply(service, request),
            "pull": lambda request, service, now: Event("pulled", now, request.session.client),
            "leave": lambda request, service, now: Event("left", now, request.session.client),
        }

    def decide(self, request: Request, service: Service, now: float) -> Decision:
        client, quarantined = request.session.client, self._shared.access.roster.quarantined
        if client in quarantined and request.kind not in ("gone", "expelled"):
            return Refusal(in_quarantine(quarantined[client]))
        greeted = self._presence.is_current(request.session) and service.is_member(client)
        if not greeted and request.kind not in STRANGERS:
            return rolled_back() if self._presence.was_dismissed(request.session) else Refusal("say hello first")
        return self.table[request.kind](request, service, now)

    def _lose(self, request: Request, service: Service, now: float) -> Decision:
        """The connection is gone. A client that may come back has a while to do so."""
        client = request.session.client
        if self._presence.disconnect(request.session) and service.is_member(client):
            patience = self._shared.operations.patience if request.kind == "gone" else 0.0
            self._presence.expect([client], now + patience)
        return Reply()

    def _greet(self, request: Request, service: Service, now: float) -> Decision:
        client, encodings = request.session.client, self._shared.operations.encodings
        _, request.session.download = messages.agreed(request.head.hello, encodings)
        self._presence.connect(request.session)
        if not service.is_member(client):
            return Event("joined", now, client)
        return welcome_reply(service, self._presence.sessions, request, encodings)

    def _order_work(self, request: Request, service: Service, now: float) -> Decision:
        client = request.session.client
        if client in service.flights:
            return order_messages(service, self._presence.sessions, service.task_again(client), request)
        if service.members[client].status == Status.READY:
            return accepted_reply(request)
        return Event("ready", now, client)

    def _receive(self, request: Request, service: Service, now: float) -> Decision:
        client, push = request.session.client, request.head.push
        flight = service.flights.get(client)
        if flight is not None and flight.number == push.task:
            try:
                checked = check_push(push, request.body, flight, service.setting, self._shared.operations)
            except Refused as refused:
                return refused.refusal
            timed = replace(checked, sent_bytes=request.sent_bytes, sent_seconds=request.sent_seconds)
            return Event("updated", now, client, timed)
        if push.task and push.task == service.members[client].answered:
            log("repeated", client=client, task=push.task)
            return current_reply(service, self._presence.sessions, request)
        void = self._tracker.has_expired_with(client, push.task)
        return Refusal(f"task {push.task} is not yours, or it was withdrawn when you left", void)
