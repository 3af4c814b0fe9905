"""Several servers of one service, each in a thread of the test's with a directory of its own."""

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc

from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.paths import OPERATIONS
from polytempo.serve.process.backup import put_document
from polytempo.serve.storage.address import note_database
from polytempo_client.protocol.framing import CLIENT_OPTIONS, SESSION
from polytempo_client.protocol.wire_pb2 import Frame
from support.postgres import Server
from support.serving import nudge, until
from support.whole_service import Service

PATIENT = 60.0
"""Seconds of a lease that nobody loses because the machine is busy."""
QUICK = 1.0


class Several:
    """The servers ``a``, ``b``, ...; the tokens of their clients lie in ``a``."""

    def __init__(self, directory: Path, database: Server, lease_seconds: float, clients: int) -> None:
        self.directory, self.database = directory, database
        self.schema = f"several_{time.time_ns()}"
        self._stack = ExitStack()
        self.servers: dict[str, Service] = {}
        make_tokens(self.prepared("a"), clients)
        self.set(f"[failover]\nlease_seconds = {lease_seconds}\n[log]\nfile = 'service.log'\n")

    def prepared(self, name: str) -> Path:
        """The directory of a server."""
        directory = self.directory / name
        if not directory.exists():
            note_database(directory, self.database.url(self.schema))
        return directory

    def set(self, operations: str) -> None:
        put_document(self.prepared("a"), OPERATIONS, operations.encode())

    def start(self, name: str) -> Service:
        from polytempo.serve.process.options import Endpoints

        self.servers[name] = Service(self.prepared(name), Endpoints("127.0.0.1:0", insecure=True))
        return self.servers[name]

    def stop(self, name: str) -> None:
        self.servers.pop(name).stop()

    def close(self) -> None:
        for server in self.servers.values():
            server.stop()

    def client(self, name: str, number: int = 0, **given: Any) -> Any:
        """Of the server with this name."""
        from polytempo_client.client import Client

        token = self.directory / "a" / f"client-{number}.token"
        return Client(self.servers[name].address, token, insecure=True, **given)

    def status(self, name: str) -> dict[str, Any]:
        path = self.directory / name / "journal" / "status.json"
        status: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return status

    def logged(self, event: str) -> list[dict[str, Any]]:
        """By any of the servers: they are in one process, and all logs go where the last one wants them."""
        logs = [path for path in self.directory.glob("*/service.log") if path.exists()]
        rows = [json.loads(line) for path in logs for line in path.read_text().splitlines()]
        return [row for row in rows if row["event"] == event]

    def lease(self) -> dict[str, Any]:
        names = ("epoch", "holder", "last", "confirmed")
        (row,) = self.execute(f"SELECT {', '.join(names)} FROM lease")
        return dict(zip(names, row, strict=True))

    def execute(self, sql: str) -> list[Any]:
        return self.database.execute(f"SET search_path TO {self.schema}; {sql}")

    def leads(self, name: str) -> bool:
        status = self.status(name)
        return status.get("role") == "leader" and status["server"] == self.lease()["holder"]

    def wait_for_leader(self, name: str) -> None:
        until(lambda: self.leads(name), 60)

    def wait_for_any_leader(self) -> str:
        until(lambda: any(map(self.leads, self.servers)), 60)
        return next(name for name in self.servers if self.leads(name))

    def let_lead(self, holder: str, seconds: float) -> None:
        """Somebody who does nothing with it takes the lead for a while."""
        values = f"epoch = epoch + 1, holder = '{holder}', expires = clock_timestamp() + '{seconds} s'"
        self.execute(f"UPDATE lease SET {values} RETURNING 1")

    def wait_for_standby(self, name: str) -> None:
        """Until it has applied what the leader has."""
        until(lambda: self.stands_by(name), 60)

    def stands_by(self, name: str) -> bool:
        status = self.status(name)
        told = json.loads(dict(self.execute("SELECT name, told FROM servers")).get(status.get("server"), "{}"))
        return bool(told.get("follows")) and told["role"] == "standby" and told["event"] >= self.lease()["confirmed"]

    def push(self, name: str, number: int = 0, count: int = 1) -> list[int]:
        """Updates that this client hands in; the numbers of their tasks."""
        tasks = []
        with self.client(name, number) as client:
            for _ in range(count):
                task = client.task(60)
                client.push(task, nudge(task), samples=10, timeout=60)
                tasks.append(task.number)
        return tasks

    def answer(self, name: str) -> str:
        """What this server says to whoever comes, if it is not the leader."""
        with grpc.insecure_channel(self.servers[name].address, CLIENT_OPTIONS) as channel:
            call = channel.stream_stream(SESSION, Frame.SerializeToString, Frame.FromString)(iter(()), timeout=30)
            try:
                next(iter(call))
            except grpc.RpcError as error:
                return f"{error.code().name}: {error.details()}"
        raise AssertionError("it has answered")


@contextmanager
def several(directory: Path, database: Server, lease_seconds: float = PATIENT, clients: int = 2) -> Iterator[Several]:
    servers = Several(directory, database, lease_seconds, clients)
    try:
        yield servers
    finally:
        servers.close()
