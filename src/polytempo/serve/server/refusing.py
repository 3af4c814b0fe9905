"""What a host refuses, and what comes of it: whoever gives cause too often is put in quarantine, and a session that
another one has displaced ends."""

import logging
from collections.abc import Callable

from polytempo.serve.server import messages
from polytempo.serve.server.decisions import Refusal
from polytempo.serve.server.meters import STRATEGY
from polytempo.serve.server.presence import Presence
from polytempo.serve.server.refusals import RefusalTracker
from polytempo.serve.server.requests import Request
from polytempo.serve.server.shared import Shared
from polytempo_client.logs import log


class Refusing:
    """Of one host. ``now`` is the service's time."""

    def __init__(self, shared: Shared, presence: Presence, tracker: RefusalTracker, now: Callable[[], float]) -> None:
        self._shared, self._presence, self._tracker, self._now = shared, presence, tracker, now

    def end_displaced(self) -> None:
        """A client has begun another session: tell the program that has the one before."""
        for session in self._presence.pop_displaced():
            client = session.client
            what = "contested" if self._tracker.count_takeover(client, self._now()) else "replaced"
            self._shared.meters.refusals[what] += 1
            log(what, level=logging.WARNING, client=client)
            session.send(messages.refusal("another session of this client has begun", replaced=True))
            session.end()

    def refuse(self, request: Request, refusal: Refusal) -> None:
        client, kind = request.session.client, request.kind
        self._shared.meters.refusals[STRATEGY if refusal.failed else kind] += 1
        log("refused", level=logging.WARNING, client=client, kind=kind, reason=refusal.reason)
        ends = refusal.again or kind == "wire"
        message = messages.refusal(refusal.reason, refusal.again, void=refusal.void, failed=refusal.failed, ends=ends)
        request.session.send(message, request.head.request)
        if ends:
            request.session.end()
        forgiven = refusal.void and self._tracker.forgive(client, request.head.push.task)
        if refusal.blames and not forgiven:
            self._blame(request, refusal.reason)

    def _blame(self, request: Request, reason: str) -> None:
        """Quarantine a client of which too much had to be refused; the server ends its sessions."""
        client = request.session.client
        if request.kind != "wire" and not self._presence.is_current(request.session):
            return  # it was on its way when we ended the session, which may be somebody else's fault
        if client in self._shared.access.roster.quarantined:
            return
        too_much = self._tracker.count_refusal(client, self._now(), self._shared.operations.quarantine)
        if too_much is not None:
            log("quarantined", level=logging.ERROR, client=client, reason=reason)
            self._shared.access.quarantine(client, f"{too_much}, the last: {reason}")
