"""What a script works with: the model, tasks as the real server would send them, and the real server's judgement of
what comes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import torch
from torch import Tensor

from polytempo.core.flight import Flight
from polytempo.core.orders import Report, Send, Train, Work
from polytempo.serve.access.certs import make_certs, make_client_certificate
from polytempo.serve.access.tokens import client_token_file, make_tokens
from polytempo.serve.conform.program import Program
from polytempo.serve.conform.stage import NotMetError, Received, ScriptedServer, Talk, Watch
from polytempo.serve.paths import CA_CERTIFICATE, SERVER_CERTIFICATE, SERVER_KEY
from polytempo.serve.server import messages
from polytempo.serve.server.checks import Refused, check_push
from polytempo.serve.server.operations import Operations
from polytempo.serve.state.events import Push
from polytempo.serve.state.service import Dispatched
from polytempo.strategies.base.strategy import Setting
from polytempo_client.model.schema import Schema
from polytempo_client.protocol import wire_pb2 as pb
from polytempo_client.protocol.framing import FRAME_BYTES, PROTOCOL
from polytempo_client.protocol.welcome import make_welcome

CLIENT, SEED = 0, 7
SMALL = Schema(("body.weight", "body.bias", "head.weight", "head.bias"), ((6, 4), (6,), (3, 6), (3,)), 51)
LARGE = Schema(("body.weight", "body.bias", "head.weight", "head.bias"), ((500, 300), (500,), (3, 500), (3,)), 152_003)
"""600 kB: two frames and a half."""
FEW, MANY = 3, 10**9
"""Local steps of a task: of one that is soon done, and of one that never is."""
NEAR = 10.0
"""How far training may lead in any number of the model, whatever the training is."""
APART = 1000.0
"""How far apart in every number two models are that a script tells from each other."""


@dataclass(frozen=True)
class Kit:
    """Files of one service: certificates, and the client's token."""

    directory: Path

    @staticmethod
    def make(directory: Path) -> Kit:
        directory.mkdir(parents=True)
        make_certs(directory, [])
        make_client_certificate(directory, CLIENT)
        make_tokens(directory, 1)
        return Kit(directory)

    @property
    def token_file(self) -> Path:
        return client_token_file(self.directory, CLIENT)

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    def credentials(self, mutual: bool = False) -> grpc.ServerCredentials:
        """``mutual``: clients have to show a certificate that the CA has signed."""
        key, certificate, ca = (
            (self.directory / name).read_bytes() for name in (SERVER_KEY, SERVER_CERTIFICATE, CA_CERTIFICATE)
        )
        return grpc.ssl_server_credentials([(key, certificate)], ca if mutual else None, mutual)


class Scene:
    """One point's: servers, the program, and numbers for orders."""

    def __init__(self, command: Sequence[str], kit: Kit, room: Path, seconds: float) -> None:
        self.kit, self._command, self.room = kit, command, room
        self.token_file = kit.token_file
        self.program: Program | None = None
        self.watch = Watch(seconds, lambda: self.program)
        self.stages: list[ScriptedServer] = []
        self.schema = SMALL
        self.keep_file = room / "task"
        self._number = 100

    def stage(self, mutual: bool = False) -> ScriptedServer:
        """One more server."""
        self.stages.append(ScriptedServer(self.watch, self.kit.credentials(mutual)))
        return self.stages[-1]

    def start(self, addresses: str = "", **told: str) -> None:
        """Start the program. ``addresses``: default, those of the servers."""
        self.program = Program(
            self._command,
            {
                "POLYTEMPO_SERVERS": addresses or ",".join(stage.address for stage in self.stages),
                "POLYTEMPO_TOKEN": str(self.token_file),
                "POLYTEMPO_CA": str(self.kit.directory / CA_CERTIFICATE),
                "POLYTEMPO_CERT": str(self.kit.directory / f"client-{CLIENT}.pem"),
                "POLYTEMPO_KEY": str(self.kit.directory / f"client-{CLIENT}.key"),
                "POLYTEMPO_KEEP": str(self.keep_file),
                "POLYTEMPO_UPLOAD": "",
                "POLYTEMPO_DOWNLOAD": "",
                "POLYTEMPO_CODE": "",
                **told,
            },
            self.room / "output",
        )

    def close(self) -> None:
        if self.program is not None:
            self.program.stop()
        for stage in self.stages:
            stage.stop()

    def begun(self, **told: str) -> tuple[ScriptedServer, Talk]:
        """One server, and the program's first session with it."""
        stage = self.stage()
        self.start(**told)
        return stage, self.joined(stage)

    # What the server says.

    def joined(self, stage: ScriptedServer, task: int = 0, upload: str = "", download: str = "") -> Talk:
        """The client's next session, welcomed. ``task``: the open task that the server knows of."""
        talk = stage.next_talk()
        if talk.token != self.kit.token:
            raise NotMetError('a session has to show the token as "authorization: Bearer TOKEN" in its metadata')
        self.welcome(talk, talk.take("hello"), task, upload, download)
        return talk

    def welcome(
        self,
        talk: Talk,
        hello: Received,
        task: int = 0,
        upload: str = "",
        download: str = "",
        frames: int = FRAME_BYTES,
    ) -> None:
        made = make_welcome(CLIENT, self.schema, SEED, task, upload, download)
        made.frame_bytes, talk.frame_bytes, made.protocol = frames, frames, PROTOCOL
        talk.send((pb.Head(welcome=made), ()), hello)

    def model(self, off: float = 0.0) -> Tensor:
        """A model; two that are ``APART`` differ by so much in every number."""
        return torch.linspace(-1, 1, self.schema.size) * 50 + off

    def flight(self, weights: Tensor | None = None, steps: int = FEW, trainable: tuple[str, ...] = ()) -> Flight:
        """A new task."""
        work = Work(steps=steps, batch_size=8, lr=0.01)
        start = self.model() if weights is None else weights
        order = Train(CLIENT, start, self._next(), work, trainable=trainable)
        return Flight(self._next(), order, count=0, dispatched=0.0)

    def send_task(self, talk: Talk, flight: Flight, asked: Received | None, download: str = "") -> None:
        talk.send(messages.order_message(self.dispatched(flight), self.schema, download), asked)

    def ordered(self, talk: Talk, flight: Flight | None = None) -> Flight:
        """The client asks for work, and gets it."""
        flight = flight or self.flight()
        self.send_task(talk, flight, talk.take("ready"))
        return flight

    def refresh(self, talk: Talk, flight: Flight, weights: Tensor) -> int:
        """A model in the middle of the training. Its number."""
        number, send = self._next(), Send(CLIENT, weights, flight.order.version + 1)
        flight.refresh(number, send)
        talk.send(messages.order_message(Dispatched(number, send, 0, flight.number), self.schema))
        return number

    def report(self, talk: Talk, flight: Flight) -> None:
        talk.send(messages.order_message(Dispatched(self._next(), Report(CLIENT), 0, flight.number), self.schema))

    def go_on(self, talk: Talk, pushed: Received, flight: Flight | None = None) -> Flight:
        """Take a result, and give the client its next task."""
        flight = flight or self.flight()
        if pushed.head.push.ready:
            self.send_task(talk, flight, pushed)
            return flight
        talk.send(messages.accepted(), pushed)
        return self.ordered(talk, flight)

    # What the client hands in.

    def result(self, talk: Talk, flight: Flight) -> tuple[Received, Push]:
        """The client's result of a task, which the real server would take."""
        pushed = talk.take("push")
        return pushed, self.judged(pushed, flight)

    def judged(self, pushed: Received, flight: Flight) -> Push:
        push = pushed.head.push
        if push.task != flight.number:
            raise NotMetError(f"it pushed a result of task {push.task}; its open task is {flight.number}")
        setting = Setting(self.model(), self.schema)
        try:
            checked = check_push(push, pushed.body, flight, setting, Operations())
        except Refused as refused:
            raise NotMetError(f"a server would refuse its update: {refused.refusal.reason}") from None
        base = flight.base(push.base, None)
        assert base is not None
        moved = float((checked.weights - base.weights).abs().max())
        if not moved and push.steps:  # asked to stop before its first step, it has nothing else
            raise NotMetError("its update is the model that it was sent: nothing was trained")
        if moved > NEAR:
            raise NotMetError(
                f"its update is up to {moved:.4g} away from model {push.base}, from which it says that it started; "
                f"expected at most {NEAR:g}"
            )
        return checked

    def soon(self, pushed: Push, flight: Flight) -> None:
        """The client was asked to stop early, and has not done all steps."""
        if pushed.steps >= flight.order.work.steps_for(1):
            raise NotMetError(f"it says that it did {pushed.steps} steps, all of the task's, although it was to stop")

    def _next(self) -> int:
        self._number += 1
        return self._number

    def dispatched(self, flight: Flight) -> Dispatched:
        return Dispatched(flight.number, flight.order, flight.count, flight.number)
