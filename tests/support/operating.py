"""The operators' page of a service that does not exist: its status is the test's to choose."""

import asyncio
import http.client
import json
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from polytempo.core.errors import UserError
from polytempo.serve.access.roster import Operator
from polytempo.serve.operators.admin import Actions, Admin
from polytempo.serve.operators.listener import LIFETIME
from polytempo.serve.server.pulse import Health

TOKENS = {"alice-token": Operator("alice", "admin"), "bob-token": Operator("bob", "viewer")}


def a_client(client: int, **changed: Any) -> dict[str, Any]:
    """A row of the status."""
    return {
        "client": client,
        "doing": "training",
        "connected": True,
        "task": 100 + client,
        "updates": 7,
        "version": 40 + client,
        "staleness": client % 5,
        "last_update": 3590.0 - client,
        "idle_share": 0.125,
        "cluster": 0,
        "accuracy": 0.75,
        "loss": 0.5,
        "used": None,
        "alone": None,
        "expires": None,
        "quarantined": None,
        "refused": 0,
        **changed,
    }


def a_status(clients: int | list[dict[str, Any]] = 3, **changed: Any) -> dict[str, Any]:
    """What a service says that runs since an hour."""
    rows = [a_client(client) for client in range(clients)] if isinstance(clients, int) else clients
    return {
        "written": time.time(),
        "stopped": False,
        "draining": False,
        "process": 4321,
        "strategy": "casa",
        "uptime": 3600.0,
        "updates": 1234,
        "held_back": 3,
        "bad_reports": 2,
        "updates_per_second": 4.25,
        "branches": {"model": 43},
        "clients": rows,
        "timers": 2,
        "refusals": {"push": 5, "token": 2},
        "journal": {"events": 5678, "bytes": 12_345_678, "snapshot_bytes": 2_345_678},
        "sessions": len(rows),
        "incoming_bytes": 1024,
        "access_problem": None,
        "journal_failing": False,
        "role": "leader",
        "epoch": 7,
        "database_problem": "",
        "servers": [
            {"role": "leader", "event": 5678, "differed_at": None},
            {"role": "standby", "event": 5670, "follows": "events", "problem": "", "differed_at": None},
            {
                "role": "standby",
                "event": 0,
                "follows": "",
                "problem": "The database does not answer.",
                "differed_at": 9,
            },
        ],
        "strategy_failures": 0,
        "certificate_expires": 1_800_000_000.0,
        "bytes": {"in": 1_000_000, "out": 2_000_000},
        "requests": {"bounds": [0.01, 0.1], "counts": [90, 9, 1], "seconds": 1.5, "p50": 0.004, "p99": 0.012},
        "memory_bytes": 400 << 20,
        "splits": [],
        "regroupings": [],
        **changed,
    }


class OperatorsPage:
    """An ``Admin`` on loopback, on a loop of its own. ``status`` and ``healthy`` may be changed at any time. ``acted``
    is what operators have done."""

    def __init__(self, status: dict[str, Any], context: ssl.SSLContext | None, lifetime: float) -> None:
        self.status, self.healthy = status, True
        self.acted: list[tuple[Any, ...]] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._context, self._lifetime = context, lifetime
        self.port = 0
        self.open()

    def open(self) -> None:
        async def start() -> tuple[Admin, int]:
            actions = Actions(self._revoke, self._release, self._make_code, lambda: self.acted.append(("reload",)))
            admin = Admin(lambda: self.status, TOKENS.get, actions, lambda: Health(self.healthy, 0.25), self._lifetime)
            return admin, await admin.start(f"127.0.0.1:{self.port}", self._context)

        self.admin, self.port = self.call(start())

    def shut(self) -> None:
        self.call(self.admin.stop())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def _revoke(self, client: int) -> None:
        if client == 99:
            raise UserError("Client 99 has no token: there is nothing to revoke.")
        self.acted.append(("revoke", client))

    def _release(self, client: int) -> None:
        self.acted.append(("release", client))

    def _make_code(self, client: int, hours: float, days: float | None) -> str:
        self.acted.append(("code", client, hours, days))
        return "a-one-time-code"

    def ask(
        self, path: str, token: str | None = "alice-token", method: str = "GET", body: Any = None
    ) -> tuple[int, http.client.HTTPMessage, str]:
        return ask(self.port, path, token, method, body)


def ask(
    port: int, path: str, token: str | None, method: str = "GET", body: Any = None
) -> tuple[int, http.client.HTTPMessage, str]:
    """Status, headers and body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request(method, path, sent, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


@contextmanager
def operators_page(
    status: dict[str, Any] | None = None, context: ssl.SSLContext | None = None, lifetime: float = LIFETIME
) -> Iterator[OperatorsPage]:
    opened = OperatorsPage(a_status() if status is None else status, context, lifetime)
    try:
        yield opened
    finally:
        opened.shut()
        opened.close()
