"""A service inside the test: on the test's own thread and a clock that it sets, or on loopback with real clients that
pretend to train."""

import asyncio
import itertools
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import grpc.aio
import numpy as np
import torch

from polytempo.core.events import Update
from polytempo.core.orders import Orders, Report, Send, SetTimer
from polytempo.serve.access.live import Access
from polytempo.serve.access.tls import ServerCertificate
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal.continuing import Consent
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.settings import ServiceSettings
from polytempo.serve.paths import ACCESS, JOURNAL
from polytempo.serve.process.running import lead_until
from polytempo.serve.server.host import Host
from polytempo.serve.server.network.outbox import Outbox
from polytempo.serve.server.network.sessions import Server
from polytempo.serve.server.operations import Operations
from polytempo.serve.server.shared import Shared
from polytempo.strategies import Strategy
from polytempo.testing.hosting import FakeSession as FakeSession
from polytempo.testing.hosting import Hosted as HostedInFiles
from polytempo.testing.hosting import ManualClock as ManualClock
from polytempo.testing.hosting import operations_of, tiny_settings
from polytempo.testing.hosting import restarted as restarted
from polytempo_client.client import Client
from polytempo_client.protocol.bodies import entry_of, make_body
from polytempo_client.protocol.tasks import Task
from polytempo_client.protocol.wire_pb2 import Head, Hello, Push
from polytempo_client.session.credentials import read_token
from support.postgres import copy_store, is_in_database

# gRPC's engine for asyncio ends with the last server and begins with the next. A client of the same process that
# connects in between hangs for ever. So one engine serves all tests.
grpc.aio.init_grpc_aio()

# Strategies for tests; `strategy="support.serving:Refresher"`.


class Refresher(Strategy):
    """Sends each new model to whoever is in training, every second time to be rebased on, and to whoever pulls."""

    def updated(self, update: Update, now: float) -> Orders:
        self.model.mix(update.weights, 0.5 / (1 + self.tau(update)))
        for client, busy in self.participation.members.items():
            if busy and client != update.client:
                yield Send(client, self.model.weights, self.model.version, rebase=self.model.version % 2 == 0)

    def pulled(self, client: int, now: float) -> Orders:
        yield Send(client, self.model.weights, self.model.version)


class Impatient(Strategy):
    """Two timers: one asks all clients to hand in what they have, one changes the model."""

    def setup(self) -> None:
        self.fired_at: list[tuple[str, float]] = []

    def joined(self, client: int, now: float) -> Orders:
        first = not self.participation.members
        super().joined(client, now)
        return [SetTimer(now + 7.3, "report"), SetTimer(now + 3.1, "shrink")] if first else None

    def updated(self, update: Update, now: float) -> None:
        self.model.mix(update.weights, 0.5)

    def fired(self, key: str, now: float) -> Orders:
        self.fired_at.append((key, now))
        yield SetTimer(now + (7.3 if key == "report" else 3.1), key)
        if key == "report":
            yield from (Report(client) for client, busy in self.participation.members.items() if busy)
        else:
            self.model.mix(torch.zeros_like(self.model.weights), 0.01)


class Brittle(Strategy):
    """Fails half-way through an update whose answers say so."""

    def updated(self, update: Update, now: float) -> None:
        self.model.mix(update.weights, 0.5)
        if "break" in update.answers:
            raise ZeroDivisionError("half-way")


class Hosted(HostedInFiles):
    """One that may be kept in a database, too."""

    def copied(self, to: Path) -> Path:
        return copied(self.directory.parent, to)


def copied(service: Path, to: Path) -> Path:
    """What a crash at this moment would leave of the service in this directory."""
    shutil.copytree(service / JOURNAL, to / JOURNAL)
    if is_in_database(service):
        copy_store(service, to)
    return to


@contextmanager
def hosted(directory: Path, strategy: str = "fedasync", **given: Any) -> Iterator[Hosted]:
    host = Hosted(directory, strategy, **given)
    try:
        yield host
    finally:
        host.close()


def join_all(hosted: Hosted, clients: int = 2) -> None:
    """Clients say hello and ask for work."""
    for client in range(clients):
        hosted.hello(client)
        hosted.ready(client)


def some_events(hosted: Hosted, updates: int = 6, clients: int = 3) -> None:
    """Clients join, train in turn, pull, leave and come again."""
    join_all(hosted, clients)
    for i in range(updates):
        hosted.clock.now += 1.25
        hosted.push(i % clients, by=0.1 * (i + 1), answers={"loss": 0.5 * i})
        if i % 4 == 1:
            hosted.pull(i % clients)
        if i % 4 == 3:
            hosted.leave(i % clients)
            hosted.hello(i % clients)
            hosted.ready(i % clients)


def without(*events: int) -> Consent:
    """Leave these events out, whatever is known of them."""
    return Consent(leave_out=tuple(range(event, event + 1) for event in events), unproven=True)


def journal_files(directory: Path, pattern: str) -> list[Path]:
    return sorted((directory / "journal").glob(pattern))


def refused(answer: Head, reason: str) -> bool:
    assert answer.WhichOneof("kind") == "refusal", answer
    assert reason in answer.refusal.reason
    return not answer.refusal.again


# A server with real connections.


Security = Literal["plaintext", "tls", "mtls"]


class Running:
    """A server in a thread of its own."""

    def __init__(
        self,
        directory: Path,
        settings: ServiceSettings,
        operations: Operations,
        seconds: Callable[[], float],
        port: int,
        security: Security,
    ) -> None:
        self.directory, self.settings, self.operations = directory, settings, operations
        self._security = security
        self.certificate = None if security == "plaintext" else ServerCertificate(directory, security == "mtls")
        self._seconds = seconds
        self._started = threading.Event()
        self._error: BaseException | None = None
        self.port = port
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        assert self._started.wait(30)
        if self._error is not None:
            raise self._error

    async def _serve(self) -> None:
        try:
            self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
            opened = open_service(self.directory / "journal", self.settings)
            self.shared = Shared(self.operations, Access(self.directory), Outbox(self._loop.call_soon_threadsafe))
            self.host = Host(opened, self.shared, self._seconds)
            mutual = self._security == "mtls"
            self.server = Server(self.host.submit, opened.service.schema, self.shared, mutual)
            credentials = None if self.certificate is None else self.certificate.credentials()
            self.port = self.server.listen(f"127.0.0.1:{self.port}", credentials)
            self._started.set()
            leading = asyncio.create_task(lead_until(self._stop, self.host, self.server, self.shared))
            await asyncio.sleep(0)  # the host is there first
            await self.server.start()
            try:
                await leading
            finally:
                await self.server.close()
        except BaseException as error:
            self._error = error
            self._started.set()

    def token(self, client: int) -> str:
        return read_token(self.directory / f"client-{client}.token")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, number: int, keep: Path | None = None, **given: Any) -> Client:
        return self.client_with(self.token(number), keep=keep, **given)

    def client_with(self, token: str, **given: Any) -> Client:
        if self._security == "plaintext":
            return Client(self.address, token, insecure=True, **given)
        return Client(self.address, token, self.directory / "ca.pem", **given)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


@contextmanager
def running(
    directory: Path,
    strategy: str = "fedasync",
    clients: int = 3,
    seconds: Callable[[], float] = time.monotonic,
    port: int = 0,
    security: Security = "plaintext",
    **given: Any,
) -> Iterator[Running]:
    """The directory has to hold certificates where the security needs them."""
    if not (directory / ACCESS).exists():
        make_tokens(directory, clients)
    operations = operations_of(given)
    server = Running(directory, tiny_settings(directory, strategy, **given), operations, seconds, port, security)
    try:
        yield server
    finally:
        server.stop()


def until(true: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for something that another thread does."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.005)


def nudge(task: Task, by: float = 0.1) -> dict[str, np.ndarray]:
    """What training might have made of a task's model."""
    return {name: array + np.float32(by) for name, array in task.tensors.items()}


def push_unchecked(client: Client, task: Task, tensors: Mapping[str, np.ndarray]) -> None:
    """What a client that does not look at its update first would send."""
    body = make_body(tuple(entry_of(name, array) for name, array in tensors.items()), list(tensors.values()))
    push = Push(task=task.number, base=task.base, samples=5, steps=task.work.steps_for(5))
    client._connection.ask(Head(push=push), body, 30)


def settled(client: Client) -> None:
    """Wait until the server has done what was due before now, and its messages have arrived. The answer to the first
    greeting may be overtaken by what is due; that to the second not."""
    for _ in range(2):
        client._connection.ask(Head(hello=Hello()))


PORTS = itertools.count()


def free_port() -> int:
    """Below those that the kernel gives to outgoing connections, and another one for each process that tests and each
    server: nobody takes it while the server is dead."""
    for number in PORTS:
        port = 20_000 + (97 * os.getpid() + number) % 12_000
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise AssertionError
