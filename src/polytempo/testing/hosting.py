"""A service on the caller's own thread, at the time that the caller sets. Requests pass through the wire format, checks
and journal of a real service; only the network is left out."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from torch import Tensor

from polytempo.core.state import pack
from polytempo.serve.access.live import Access
from polytempo.serve.access.roster import Roster
from polytempo.serve.journal.continuing import NO_CONSENT, Consent
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.settings import ServiceSettings, make_settings
from polytempo.serve.server.host import Host
from polytempo.serve.server.messages import Message
from polytempo.serve.server.operations import Operations
from polytempo.serve.server.requests import Request
from polytempo.serve.server.shared import Shared
from polytempo.serve.state.events import Event
from polytempo_client.personal.told import JuryScores
from polytempo_client.protocol.bodies import entries_of, entry_of, make_body
from polytempo_client.protocol.framing import Assembler, Buffer, frames
from polytempo_client.protocol.personal import jury_message
from polytempo_client.protocol.wire_pb2 import Frame, Head, Hello, Leave, Pull, Push, Ready

BARE = {"clip": None, "samples_cap": None}
"""Settings of a service that tells its strategy what clients sent, as a simulation does."""


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

    def send(self, message: Message, request: int = 0) -> None:
        head, body = message
        head.answers = request
        self.sent.append(through_the_wire(head, body))

    def end(self) -> None:
        self.ended = True

    def reply(self, number: int) -> tuple[Head, bytearray] | None:
        return next(((head, body) for head, body in reversed(self.sent) if head.answers == number), None)

    def kinds(self) -> list[str | None]:
        return [head.WhichOneof("kind") for head, _ in self.sent]


class AtOnce(Executor):
    """Does what others do in a thread."""

    def submit(self, function: Callable[..., Any], /, *given: Any) -> "Future[Any]":  # type: ignore[override]
        done: Future[Any] = Future()
        try:
            done.set_result(function(*given))
        except Exception as error:
            done.set_exception(error)
        return done


class Hosted:
    """A host that does what the test asks, at the time that the test says it is."""

    def __init__(
        self, directory: Path, strategy: str = "fedasync", *, consent: Consent = NO_CONSENT, **given: Any
    ) -> None:
        self.operations = given.pop("operations", None) or operations_of(given)
        settings = given.pop("settings", None) or tiny_settings(directory, strategy, **given)
        self.directory, self.settings = directory / "journal", settings
        self.clock = ManualClock()
        self.opened = open_service(self.directory, settings, consent)
        self.shared = Shared(self.operations, Access(directory, Roster()))
        self.host = Host(self.opened, self.shared, self.clock)
        self.host.snapshots.writer = AtOnce()
        self.sessions: dict[int, FakeSession] = {}
        self._requests = 0

    # What clients do.

    def ask(self, client: int, head: Head, body: Sequence[Buffer] = ()) -> Head:
        """A request, and its reply."""
        session = self.sessions[client]
        self.host.handle([self.request(client, head, body)])
        reply = session.reply(self._requests)
        assert reply is not None, "the request got no reply"
        return reply[0]

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
        jury: JuryScores | None = None,
        **changed: Any,
    ) -> tuple[Head, list[Buffer]]:
        """What an honest client pushes, unless something is changed."""
        flight, schema = self.host.service.flights[client], self.host.service.schema
        given: dict[str, Any] = {"task": flight.number, "base": flight.sends[-1][0] if flight.sends else flight.number}
        text, extra = pack(dict(answers or {}))
        given |= {"samples": 10, "steps": flight.order.work.steps_for(10), "answers": text, "ready": True}
        head = Head(push=Push(**{**given, **changed}, jury=None if jury is None else jury_message(jury)))
        if weights is None:
            start = flight.base(head.push.base, head.push.chosen if head.push.HasField("chosen") else None)
            weights = (flight.order.weights if start is None else start[0]) + by
        if tensors is None and not extra:
            return head, make_body(entries_of(schema), [weights.numpy()])
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
        return type(self)(self.copied(to), settings=self.settings, operations=self.operations, **given)

    def close(self) -> None:
        self.host.journal.close()


@contextmanager
def hosted(directory: Path, strategy: str = "fedasync", **given: Any) -> Iterator[Hosted]:
    host = Hosted(directory, strategy, **given)
    try:
        yield host
    finally:
        host.close()


def restarted(directory: Path, settings: ServiceSettings, consent: Consent = NO_CONSENT) -> str:
    """Digest of the state that the journal in this directory stands for."""
    opened = open_service(directory / "journal", settings, consent)
    opened.journal.close()
    return opened.service.digest()


def through_the_wire(head: Head, body: Sequence[Buffer] = ()) -> tuple[Head, bytearray]:
    assembler = Assembler()
    for frame in frames(head, body):
        whole = assembler.add(Frame.FromString(frame.SerializeToString()))
        if whole is not None:
            return whole
    raise AssertionError("the message never ended")


def operations_of(given: dict[str, Any]) -> Operations:
    """How the service is run, out of what was given for it; the rest is about the method."""
    names = [name for name in given if name in Operations.model_fields]
    return Operations.model_validate({name: given.pop(name) for name in names})


def tiny_settings(directory: Path, strategy: str = "fedasync", **given: Any) -> ServiceSettings:
    """A model of six numbers in two tensors, and no defences around the strategy."""
    return make_settings(**{"strategy": strategy, "init": tiny_model(directory), "steps": 4, **BARE, **given})


def tiny_model(directory: Path) -> Path:
    init = directory / "init.safetensors"
    if not init.exists():
        save_file({"weight": np.arange(4, dtype=np.float32).reshape(2, 2), "bias": np.zeros(2, np.float32)}, init)
    return init
