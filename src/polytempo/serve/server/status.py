"""How a service is doing, as a file beside its journal: whoever may read the directory may look."""

import json
import logging
import os
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polytempo.core.branch import branches
from polytempo.core.errors import UserError
from polytempo.core.status import Status
from polytempo.serve.access.roster import Roster
from polytempo.serve.journal.files.database import is_taken
from polytempo.serve.journal.journal import Journal
from polytempo.serve.paths import STATUS
from polytempo.serve.server.requests import Session
from polytempo.serve.server.shared import Shared
from polytempo.serve.state.service import Member, Service
from polytempo.strategies.base.strategy import Strategy
from polytempo_client.disk.files import write_bytes
from polytempo_client.disk.reading import read_plain
from polytempo_client.logs import log

WRITTEN_EVERY = 1.0
"""Seconds."""
RATE_OVER = 10.0
"""Seconds that updates per second are counted over."""
SHOWN = 200
"""Splits, and regroupings, at most."""
NOBODY = Member()


@dataclass(frozen=True, slots=True)
class StatusSources:
    """What a status is made of."""

    service: Service
    now: float
    sessions: Mapping[int, Session]
    journal: Journal
    shared: Shared
    refusals: Mapping[int, int]
    """Of each client."""


class StatusFile:
    """Writes the status, at most once a second."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / STATUS
        self._counts: deque[tuple[float, int]] = deque()
        self._next = 0.0
        self.last: dict[str, Any] = {}
        """What was written last."""

    def write(self, sources: StatusSources, stopping: bool = False) -> None:
        seconds = time.monotonic()
        if seconds < self._next and not stopping:
            return
        self._next = seconds + WRITTEN_EVERY
        try:
            rate = self._count_rate(seconds, sources.service.updates)
            self.last = {"stopped": stopping, "updates_per_second": rate, **_status(sources)}
            # Not durable: the next one comes in a second, and a sync may take as long.
            write_bytes(self._path, json.dumps(self.last).encode(), 0o600, durable=False)
        except BaseException as error:  # of the disk, or of the strategy: the status alone stops nothing
            log("status failed", level=logging.WARNING, reason=repr(error))

    def _count_rate(self, now: float, updates: int) -> float:
        self._counts.append((now, updates))
        while len(self._counts) > 2 and self._counts[1][0] <= now - RATE_OVER:
            self._counts.popleft()
        began, before = self._counts[0]
        return (updates - before) / (now - began) if now > began else 0.0


class NotStartedError(UserError):
    """A service that is there and has told nothing of itself: it has not run since it was restored or erased from."""


def read_status(directory: Path) -> dict[str, Any]:
    """The last status, with ``running``: is the server alive, and does it write? ``silent``: the seconds for which one
    that is alive has not; else None."""
    if not (directory / STATUS).exists() and Journal.exists(directory):
        raise NotStartedError(
            f"{directory} holds no status, as after `polytempo erase` and `polytempo restore`. There is nothing to "
            "show until the service has started again (polytempo serve)."
        )
    try:
        status: dict[str, Any] = json.loads(read_plain(directory / STATUS))
        age = time.time() - status["written"]
        fresh = abs(age) < 10 * WRITTEN_EVERY  # written later than now: the clock was set
        alive = not status["stopped"] and _is_alive(status["process"])
        silent = abs(age) if alive and not fresh and is_taken(directory) else None
        return status | {"running": fresh and alive, "silent": silent}
    except (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError):
        raise UserError(f"{directory} holds no status. Expected the journal of a service (polytempo serve).") from None


def _status(sources: StatusSources) -> dict[str, Any]:
    service, journal, access = sources.service, sources.journal, sources.shared.access
    return {
        "written": time.time(),
        "timeline": journal.timeline,
        "process": os.getpid(),
        "strategy": journal.about["settings"]["strategy"],
        "uptime": sources.now,
        "updates": service.updates,
        "held_back": service.strategy.held_back,
        "bad_reports": service.strategy.bad_reports,
        "tryout_winner": service.strategy.tryout_winner,
        "branches": {name: branch.version for name, branch in branches(service.strategy.save_state())},
        "clients": _clients(service, sources.now, sources.sessions, access.roster, sources.refusals),
        "access_problem": access.problem,
        **_clusters(service.strategy),
        "timers": len(service.timers),
        **sources.shared.meters.figures(),
        "left_out": journal.about.get("left_out", []),
        "role": "leader",
        **sources.shared.servers(),
        "journal": {
            "events": journal.last,
            "bytes": journal.unsaved_bytes,
            "snapshot_bytes": journal.snapshot_bytes,
        },
    }


def _clients(
    service: Service, now: float, sessions: Mapping[int, Session], roster: Roster, refusals: Mapping[int, int]
) -> list[dict[str, Any]]:
    """Those who have taken part, those who may, and those in quarantine."""
    due = {client: flight.order.due.row() for client, flight in service.flights.items() if flight.order.due}
    return [
        {
            "client": client,
            "doing": Status(member.status).name.lower(),
            "connected": client in sessions,
            "certificate_expires": sessions[client].certificate_expires if client in sessions else None,
            "task": service.open_task(client),
            "updates": member.updates,
            "version": member.version,
            "staleness": member.staleness,
            "last_update": member.updated_at,
            "accuracy": member.accuracy,
            "loss": member.loss,
            "used": member.used,
            "alone": member.alone,
            "idle_share": member.idle_share(now),
            "refused": refusals.get(client, 0),
            "cluster": service.strategy.cluster_of(client) if client in service.members else None,
            **_access_row(roster, client),
            **mixture_row(service.strategy, client),
            **due.get(client, {}),
        }
        for client in sorted({*service.members, *roster.clients, *roster.quarantined})
        for member in [service.members.get(client, NOBODY)]
    ]


def _access_row(roster: Roster, client: int) -> dict[str, Any]:
    entry, quarantine = roster.clients.get(client), roster.quarantined.get(client)
    return {
        "token": entry is not None,
        "expires": None if entry is None or entry.expires is None else entry.expires.timestamp(),
        "quarantined": None if quarantine is None else quarantine.reason,
    }


def _clusters(strategy: Strategy) -> dict[str, list[dict[str, Any]]]:
    """How the clusters came about, most of it: a service that lives for months regroups often."""
    return {
        "splits": [
            {"at": split.time, "cluster": split.cluster, "parts": split.parts, "clients": list(map(len, split.members))}
            for split in strategy.splits()[-SHOWN:]
        ],
        "regroupings": [
            {"at": it.time, "kind": it.kind, "source": it.source, "target": it.target, "clients": len(it.clients)}
            for it in strategy.regroupings()[-SHOWN:]
        ],
    }


def mixture_row(strategy: Strategy, client: int) -> dict[str, list[float]]:
    """The shares of the clusters in the client's data; nothing where there is no estimate."""
    shares = strategy.mixture(client)
    return {} if shares is None else {"mixture": [round(share, 3) for share in shares.tolist()]}


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
