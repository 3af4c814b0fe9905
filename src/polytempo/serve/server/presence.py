"""Which clients are connected, and how long those that are not may stay away."""

from collections.abc import Iterable

from polytempo.serve.server.requests import Session


class Presence:
    """The sessions that count, one per client, and when absent clients expire."""

    def __init__(self) -> None:
        self.sessions: dict[int, Session] = {}
        self._deadlines: dict[int, float] = {}
        self._displaced: list[Session] = []
        self._dismissed: set[Session] = set()

    def is_current(self, session: Session) -> bool:
        return self.sessions.get(session.client) is session

    def was_dismissed(self, session: Session) -> bool:
        """Has the session been ended with all others? What its client had on the way by then still arrives."""
        return session in self._dismissed and not self.is_current(session)

    def connect(self, session: Session) -> None:
        """Let this be the client's session. One that it has already is displaced."""
        before = self.sessions.get(session.client)
        if before is not None and before is not session:
            self._displaced.append(before)
        self.sessions[session.client] = session
        self._deadlines.pop(session.client, None)

    def pop_displaced(self) -> list[Session]:
        """Sessions that another one has displaced, each once."""
        displaced, self._displaced = self._displaced, []
        return displaced

    def disconnect(self, session: Session) -> bool:
        """The session is over. Returns whether it was the client's current one."""
        self._dismissed.discard(session)
        if not self.is_current(session):
            return False
        del self.sessions[session.client]
        return True

    def disconnect_all(self) -> None:
        """End every session, and expect nobody."""
        for session in self.sessions.values():
            session.end()
        self._dismissed.update(self.sessions.values())
        self.sessions.clear()
        self._deadlines.clear()

    def expect(self, clients: Iterable[int], until: float) -> None:
        """These clients expire then, unless they come back."""
        self._deadlines |= dict.fromkeys(clients, until)

    def stop_expecting(self, client: int) -> None:
        self._deadlines.pop(client, None)

    def expired(self, now: float) -> list[int]:
        """Clients that have been away for too long."""
        return [client for client, at in self._deadlines.items() if at <= now]

    def deadlines(self) -> Iterable[float]:
        return self._deadlines.values()
