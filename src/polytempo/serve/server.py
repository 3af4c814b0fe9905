"""The network side of a service: gRPC sessions, and who may open one. It knows no strategy and keeps no state; requests
go to the host's thread, and its messages come back."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio

from polytempo.core.errors import UserError
from polytempo.serve import messages
from polytempo.serve.access import Roster
from polytempo.serve.addresses import check_loopback
from polytempo.serve.checks import largest_message
from polytempo.serve.host import Host, Request
from polytempo.serve.logs import log
from polytempo.serve.messages import Message
from polytempo.serve.wire import CHANNEL_OPTIONS, SERVICE, Assembler, WireError, frames
from polytempo.serve.wire_pb2 import Frame, Head

WAITING_MESSAGES = 256
"""That a client may leave unread; one that reads no more is disconnected, and sent what it missed when it returns."""
WAITING_REQUESTS = 2
"""Requests of one session that may wait for their answer; the next is read when one of them has it."""

SESSIONS = 3
"""Of one client at a time: the one that counts, and some that have not noticed yet that they are over."""
LINGER = 5.0
"""Seconds that the last messages of a session that ends may take."""


class GrpcSession:
    """One client's connection. The host hands messages over from its thread; they go out in order."""

    def __init__(self, client: int, touched: deque["GrpcSession"]) -> None:
        self.client = client
        self.outbox: deque[tuple[Message, int] | None] = deque()
        self.news = asyncio.Event()
        self.ended = asyncio.Event()
        self.ending = False
        self.room = asyncio.Semaphore(WAITING_REQUESTS)
        self._touched = touched

    def send(self, message: Message, answers: int = 0) -> None:
        if len(self.outbox) >= WAITING_MESSAGES:
            self.outbox.clear()
            self.end()
            return
        self.outbox.append((message, answers))
        self._touched.append(self)

    def end(self) -> None:
        self.ending = True
        self.outbox.append(None)
        self._touched.append(self)


class Server:
    """Sessions for a host. ``make_host`` is given what the host is to call when it has handed messages over."""

    def __init__(self, make_host: Callable[[Callable[[], None]], Host], roster: Roster) -> None:
        self._roster = roster
        self._touched: deque[GrpcSession] = deque()
        self._sessions: Counter[int] = Counter()
        self._loop = asyncio.get_running_loop()
        self.host = make_host(self._flush)
        self._limit = largest_message(self.host.service.schema)
        self._server = grpc.aio.server(options=(*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0)))
        session = grpc.stream_stream_rpc_method_handler(self._session, Frame.FromString, Frame.SerializeToString)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Session": session}),))

    def listen(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        """The port that is listened on. Without credentials only on loopback."""
        if credentials is None:
            check_loopback(address)
        try:
            if credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, credentials)
        except RuntimeError:
            raise UserError(
                f"Cannot listen on {address}. Is another program using the port, or is it not an address of this "
                "machine? Choose another --listen."
            ) from None

    async def serve(self, stop: asyncio.Event) -> None:
        """Until told to stop, or until the host fails."""
        self.host.start()
        await self._server.start()
        while not stop.is_set() and self.host.error is None:
            with_timeout = asyncio.wait_for(stop.wait(), 0.5)
            await asyncio.gather(with_timeout, return_exceptions=True)
        await self._server.stop(grace=1.0)
        await asyncio.to_thread(self.host.stop)
        if self.host.error is not None:
            raise self.host.error

    # Sessions.

    async def _session(self, _: Any, context: grpc.aio.ServicerContext[Frame, Frame]) -> None:
        client = await self._who(context)
        if self._sessions[client] >= SESSIONS:
            self.host.refusals["session"] += 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "this client has too many sessions open")
        self._sessions[client] += 1
        session = GrpcSession(client, self._touched)
        log("connected", client=client, peer=context.peer())
        reading = asyncio.create_task(self._read(session, context))
        writing = asyncio.create_task(self._write(session, context))
        ending = asyncio.create_task(session.ended.wait())
        try:
            await asyncio.wait((reading, writing, ending), return_when=asyncio.FIRST_COMPLETED)
            # A message that is being written has to go out: gRPC could not end the call behind half a message.
            session.end()
            session.news.set()
            await asyncio.wait((writing,), timeout=LINGER)
        finally:
            for side in (reading, writing, ending):
                side.cancel()
            self._sessions[client] -= 1
            self.host.submit(Request(session, "gone", Head(), bytearray()))
            log("disconnected", client=client)

    async def _who(self, context: grpc.aio.ServicerContext[Frame, Frame]) -> int:
        said = dict(context.invocation_metadata() or ()).get("authorization", "")
        kind, _, token = str(said).partition(" ")
        client = self._roster.client_of(token) if kind == "Bearer" else None
        if client is None:
            self.host.refusals["token"] += 1
            log("turned away", level=logging.WARNING, peer=context.peer())
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no client has this token")
        assert client is not None  # abort raises
        return client

    async def _read(self, session: GrpcSession, context: grpc.aio.ServicerContext[Frame, Frame]) -> None:
        assembler = Assembler(self._limit)
        while (frame := await context.read()) is not grpc.aio.EOF:
            try:
                whole = assembler.add(frame)
                if whole is None:
                    continue
                head, body = whole
                kind = head.WhichOneof("kind")
                if kind not in ("hello", "ready", "push", "pull", "leave", "branch"):
                    raise WireError(f"a client sent a message of kind {kind}")
                if not head.request:
                    raise WireError(f"a client sent a {kind} without a number")
            except WireError as error:
                self.host.refusals["wire"] += 1
                log("refused", level=logging.WARNING, client=session.client, kind="wire", reason=str(error))
                session.send(messages.refusal(str(error)))
                session.end()
                self._wake()
                await asyncio.Event().wait()  # the writer ends the session when that is out
                return
            await session.room.acquire()
            self.host.submit(Request(session, kind, head, body))

    async def _write(self, session: GrpcSession, context: grpc.aio.ServicerContext[Frame, Frame]) -> None:
        while True:
            await session.news.wait()
            session.news.clear()
            while session.outbox:
                item = session.outbox.popleft()
                if item is None:
                    return
                (head, body), answers = item
                head.answers = answers
                for frame in frames(head, body):
                    await context.write(frame)
                if answers:
                    session.room.release()

    def _flush(self) -> None:
        if self._touched:
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        while self._touched:
            session = self._touched.popleft()
            session.news.set()
            if session.ending:
                session.ended.set()
