"""A service inside the test: on the test's own thread and a clock that it sets, or on loopback with real clients that
pretend to train."""

import asyncio
import itertools
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from polytempo.core.events import Update
from polytempo.core.orders import Orders, Report, Send, SetTimer
from polytempo.core.state import pack
from polytempo.serve.access.live import Access
from polytempo.serve.access.roster import Roster
from polytempo.serve.access.tls import ServerCertificate
from polytempo.serve.access.tokens import make_tokens, read_token
from polytempo.serve.client.client import Client, Task
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.settings import ServiceSettings, make_settings
from polytempo.serve.paths import ACCESS
from polytempo.serve.process.running import serve_until
from polytempo.serve.protocol.messages import Message
from polytempo.serve.protocol.wire import Assembler, Buffer, entries_of, entry_of, frames, make_body
from polytempo.serve.protocol.wire_pb2 import Frame, Head, Hello, Leave, Pull, Push, Ready
from polytempo.serve.server.host import Host
from polytempo.serve.server.operations import Operations
from polytempo.serve.server.outbox import Outbox
from polytempo.serve.server.requests import Request
from polytempo.serve.server.sessions import Server
from polytempo.serve.server.shared import Shared
from polytempo.serve.state.events import Event
from polytempo.strategies import Strategy

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
    """Fails half-way through an update whose answers say so, and at timers that are told to."""

    def joined(self, client: int, now: float) -> Orders:
        super().joined(client, now)
        return [SetTimer(100.0, "break")] if client == 2 else None

    def updated(self, update: Update, now: float) -> None:
        self.model.mix(update.weights, 0.5)
        if "break" in update.answers:
            raise ZeroDivisionError("half-way")

    def fired(self, key: str, now: float) -> None:
        raise ZeroDivisionError(key)


# A host on the test's thread.


class ManualClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class FakeSession:
    """Keeps what the host sends, as a client would have got it."""

    download = ""
    certificate_expires: float | None = None

    def __init__(self, client: int) -> None:
        self.client = client
        self.sent: list[tuple[Head, bytearray]] = []
        self.ended = False

    def send(self, message: Message, answers: int = 0) -> None:
        head, body = message
        head.answers = answers
        self.sent.append(through_the_wire(head, body))

    def end(self) -> None:
        self.ended = True

    def answer(self, number: int) -> tuple[Head, bytearray] | None:
        return next(((head, body) for head, body in reversed(self.sent) if head.answers == number), None)

    def kinds(self) -> list[str | None]:
        return [head.WhichOneof("kind") for head, _ in self.sent]


class AtOnce(Executor):
    """Does what others do in a thread."""

    def submit(self, function: Callable[..., Any], /, *given: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        try:
            done.set_result(function(*given))
        except Exception as error:
            done.set_exception(error)
        return done


class Hosted:
    """A host that does what the test asks, at the time that the test says it is."""

    def __init__(self, directory: Path, strategy: str = "fedasync", *, lose_tail: bool = False, **given: Any) -> None:
        self.operations = given.pop("operations", None) or operations_of(given)
        settings = given.pop("settings", None) or tiny_settings(directory, strategy, **given)
        self.directory, self.settings = directory / "journal", settings
        self.clock = ManualClock()
        self.opened = open_service(self.directory, settings, lose_tail)
        self.shared = Shared(self.operations, Access(directory, Roster()))
        self.host = Host(self.opened, self.shared, self.clock)
        self.host.snapshots.writer = AtOnce()
        self.sessions: dict[int, FakeSession] = {}
        self._requests = 0

    # What clients do.

    def ask(self, client: int, head: Head, body: Sequence[Buffer] = ()) -> Head:
        """A request, and its answer."""
        session = self.sessions[client]
        self.host.handle([self.request(client, head, body)])
        answer = session.answer(self._requests)
        assert answer is not None, "the request was not answered"
        return answer[0]

    def request(self, client: int, head: Head, body: Sequence[Buffer] = ()) -> Request:
        self._requests += 1
        head.request = self._requests
        head, whole = through_the_wire(head, body)
        kind: Any = head.WhichOneof("kind")
        return Request(self.sessions[client], kind, head, whole)

    def hello(self, client: int, task: int = 0, heeded: int = 0) -> Head:
        """In the client's old session, if it has one."""
        self.sessions.setdefault(client, FakeSession(client))
        return self.ask(client, Head(hello=Hello(task=task, heeded=heeded)))

    def reconnect(self, client: int, task: int = 0, heeded: int = 0) -> Head:
        self.sessions[client] = FakeSession(client)
        return self.hello(client, task, heeded)

    def disconnect(self, client: int) -> None:
        self.host.handle([Request(self.sessions[client], "gone", Head(), bytearray())])

    def ready(self, client: int) -> Head:
        return self.ask(client, Head(ready=Ready()))

    def pull(self, client: int) -> Head:
        return self.ask(client, Head(pull=Pull()))

    def leave(self, client: int) -> Head:
        return self.ask(client, Head(leave=Leave()))

    def push(self, client: int, by: float = 0.1, **changed: Any) -> Head:
        head, body = self.pushed(client, by, **changed)
        return self.ask(client, head, body)

    def pushed(
        self,
        client: int,
        by: float = 0.1,
        *,
        weights: Tensor | None = None,
        tensors: Mapping[str, np.ndarray] | None = None,
        answers: Mapping[str, Any] | None = None,
        **said: Any,
    ) -> tuple[Head, list[Buffer]]:
        """What an honest client pushes, unless something is changed."""
        flight, schema = self.host.service.flights[client], self.host.service.schema
        given = {"task": flight.number, "base": flight.sends[-1][0] if flight.sends else flight.number}
        text, extra = pack(dict(answers or {}))
        given |= {"samples": 10, "steps": flight.order.work.steps_for(10), "answers": text, "ready": True}
        head = Head(push=Push(**{**given, **said}))
        if weights is None:
            start = flight.base(head.push.base, head.push.chosen if head.push.HasField("chosen") else None)
            weights = (flight.order.weights if start is None else start[0]) + by
        if tensors is None and not extra:
            return head, make_body(entries_of(schema), [weights])
        named = tensors or {name: tensor.numpy() for name, tensor in schema.views(weights).items()}
        arrays = {**named, **{f"answer/{i}": tensor.numpy() for i, tensor in enumerate(extra)}}
        entries = tuple(entry_of(name, array) for name, array in arrays.items())
        return head, make_body(entries, list(arrays.values()))

    def at(self, now: float) -> None:
        """The clock says so much, and the host looks at it."""
        self.clock.now = now
        self.host.handle([])

    # What the test looks at.

    def digest(self) -> str:
        return self.host.service.digest()

    def task(self, client: int) -> int:
        return self.host.service.open_task(client)

    def events(self) -> list[Event]:
        journal = self.host.journal
        return [event for _, event in journal.events(journal.snapshots()[0])]

    # Crashes.

    def copied(self, to: Path) -> Path:
        """What a crash at this moment would leave."""
        shutil.copytree(self.directory, to / "journal")
        return to

    def after_crash(self, to: Path, **given: Any) -> "Hosted":
        return Hosted(self.copied(to), settings=self.settings, operations=self.operations, **given)

    def close(self) -> None:
        self.host.journal.close()


@contextmanager
def hosted(directory: Path, strategy: str = "fedasync", **given: Any) -> Iterator[Hosted]:
    host = Hosted(directory, strategy, **given)
    try:
        yield host
    finally:
        host.close()


def some_events(hosted: Hosted, updates: int = 6, clients: int = 3) -> None:
    """Clients join, train in turn, pull, leave and come again."""
    for client in range(clients):
        hosted.hello(client)
        hosted.ready(client)
    for i in range(updates):
        hosted.clock.now += 1.25
        hosted.push(i % clients, by=0.1 * (i + 1), answers={"loss": 0.5 * i})
        if i % 4 == 1:
            hosted.pull(i % clients)
        if i % 4 == 3:
            hosted.leave(i % clients)
            hosted.hello(i % clients)
            hosted.ready(i % clients)


def restarted(directory: Path, settings: ServiceSettings, lose_tail: bool = False) -> str:
    """Digest of the state that the journal in this directory stands for."""
    opened = open_service(directory / "journal", settings, lose_tail)
    opened.journal.close()
    return opened.service.digest()


def journal_files(directory: Path, pattern: str) -> list[Path]:
    return sorted((directory / "journal").glob(pattern))


def through_the_wire(head: Head, body: Sequence[Buffer] = ()) -> tuple[Head, bytearray]:
    assembler = Assembler()
    for frame in frames(head, body):
        whole = assembler.add(Frame.FromString(frame.SerializeToString()))
        if whole is not None:
            return whole
    raise AssertionError("the message never ended")


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
            await serve_until(self._stop, self.host, self.server, self.shared.access)
        except BaseException as error:
            self._error = error
            self._started.set()

    def token(self, client: int) -> str:
        return read_token(self.directory / f"client-{client}.token")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, number: int, keep: Path | None = None) -> Client:
        return self.client_with(self.token(number), keep=keep)

    def client_with(self, token: str, **given: Any) -> Client:
        if self._security == "plaintext":
            return Client(self.address, token, insecure=True, **given)
        return Client(self.address, token, self.directory / "ca.pem", **given)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


def operations_of(given: dict[str, Any]) -> Operations:
    """How the service is run, out of what was given for it; the rest is about the method."""
    names = [name for name in given if name in Operations.model_fields]
    return Operations.model_validate({name: given.pop(name) for name in names})


def tiny_settings(directory: Path, strategy: str = "fedasync", **given: Any) -> ServiceSettings:
    """A model of six numbers in two tensors."""
    return make_settings(**{"strategy": strategy, "init": tiny_model(directory), "steps": 4, **given})


def tiny_model(directory: Path) -> Path:
    init = directory / "init.safetensors"
    if not init.exists():
        save_file({"weight": np.arange(4, dtype=np.float32).reshape(2, 2), "bias": np.zeros(2, np.float32)}, init)
    return init


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
