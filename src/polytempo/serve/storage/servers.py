"""The servers of a service: who leads it, and who stands by. Each tells of itself once a second."""

import json
from dataclasses import asdict, dataclass
from typing import Literal

from polytempo.serve.storage.database import Connection, query

GONE_AFTER = 10.0
"""Seconds without a word, after which a server is not there any more."""
KEPT_SECONDS = 3600.0
"""That its row stays."""

TELL = """
INSERT INTO servers (name, told, seen) VALUES (?, ?, clock_timestamp())
ON CONFLICT (name) DO UPDATE SET told = excluded.told, seen = excluded.seen RETURNING 1
"""
READ = "SELECT name, told, extract(epoch FROM clock_timestamp() - seen)::float8 FROM servers ORDER BY name"
FORGET = "DELETE FROM servers WHERE seen < clock_timestamp() - make_interval(secs => ?) RETURNING 1"


@dataclass(frozen=True)
class Told:
    """What a server tells of itself."""

    role: Literal["leader", "standby"] = "standby"
    address: str = ""
    """Where clients reach it."""
    event: int = 0
    """The last event that it has applied."""
    follows: Literal["", "events", "snapshots"] = ""
    """What a standby goes by: another version, or another kind of CPU, cannot apply the leader's events bit for
    bit."""
    code: str = ""
    """Equal for servers that replay each other's events to the same bits."""
    problem: str = ""
    """Why it could not lead, or does not follow."""
    differed_at: int | None = None
    """The last event that came to something else here than with the leader."""

    @property
    def standing(self) -> object:
        """What others should know at once when it changes."""
        return self.role, self.follows, self.problem, self.address


@dataclass(frozen=True)
class KnownServer:
    """One of them, as another sees it."""

    name: str
    told: Told
    silent: float
    """Seconds since it has told."""

    @property
    def is_there(self) -> bool:
        return self.silent < GONE_AFTER

    @property
    def can_lead(self) -> bool:
        """Does it stand by, with a state to go on from?"""
        return self.told.role == "standby" and bool(self.told.follows) and not self.told.problem

    def row(self) -> dict[str, object]:
        return {"name": self.name, **asdict(self.told), "silent": self.silent}


def tell(connection: Connection, name: str, told: Told) -> None:
    query(connection, TELL, (name, json.dumps(asdict(told))))
    query(connection, FORGET, (KEPT_SECONDS,))


def servers(connection: Connection) -> list[KnownServer]:
    return [KnownServer(name, Told(**json.loads(told)), silent) for name, told, silent in query(connection, READ)]


def leave(connection: Connection, name: str) -> None:
    query(connection, "DELETE FROM servers WHERE name = ? RETURNING 1", (name,))
