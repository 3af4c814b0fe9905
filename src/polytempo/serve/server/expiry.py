"""Which clients are due to leave without having said so. A departure is tried once: the strategy may fail on it, and
each try costs everybody a replay and a session. It is tried again when the client has done something since."""

from collections.abc import Mapping

from polytempo.core.status import Status
from polytempo.serve.server.requests import Session
from polytempo.serve.state.service import Service

LOOKED_AT_EVERY = 1.0
"""Seconds between looks at how long clients have said nothing."""


class Expiry:
    """The departures of one host."""

    def __init__(self) -> None:
        self._tried: dict[int, float] = {}
        """Departures that were begun and not ended: the client, and since when its status was what it was."""
        self._next_look = 0.0

    def begin(self, client: int, service: Service) -> None:
        """The client's departure is tried."""
        self._tried[client] = service.members[client].status_since

    def end(self, client: int) -> None:
        """The client has left."""
        self._tried.pop(client, None)

    def was_tried(self, client: int, service: Service) -> bool:
        """Has the strategy failed on the client's departure, and the client done nothing since?"""
        member = service.members.get(client)
        return member is not None and self._tried.get(client) == member.status_since

    def look_for_silent(
        self, service: Service, sessions: Mapping[int, Session], now: float, limit: float | None
    ) -> list[int]:
        """Clients that are connected and have neither answered their task nor asked for one for so many seconds. Looks
        at most once a second."""
        if limit is None or now < self._next_look:
            return []
        self._next_look = now + LOOKED_AT_EVERY
        return [
            client
            for client, member in service.members.items()
            if member.status in (Status.TRAINING, Status.PAUSED)
            and now - member.status_since >= limit
            and client in sessions
            and not self.was_tried(client, service)
        ]
