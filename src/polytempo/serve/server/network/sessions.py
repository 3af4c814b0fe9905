"""The network side of a service: gRPC sessions, who may open one, and how much they may ask. It knows no strategy and
keeps no state; requests go to the host's thread, and its messages come back."""

import asyncio
import logging
import resource
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

import grpc
import grpc.aio

from polytempo.serve.access.roster import Roster, client_name, in_quarantine
from polytempo.serve.access.tls import Context, certificate_end, common_names
from polytempo.serve.addresses import Peer, cannot_listen, peer_named
from polytempo.serve.server import messages
from polytempo.serve.server.checks import largest_message
from polytempo.serve.server.meters import resident_bytes
from polytempo.serve.server.network.enrolment import Enrolments
from polytempo.serve.server.network.flood_guard import Bounds, Closed, FloodGuard
from polytempo.serve.server.network.incoming import BusyError, Incoming, Memory, RateLimit
from polytempo.serve.server.network.outbox import GrpcSession
from polytempo.serve.server.operations import Limits
from polytempo.serve.server.requests import RESTARTS, Request, RequestKind
from polytempo.serve.server.shared import Shared
from polytempo_client.errors import WireError
from polytempo_client.logs import log
from polytempo_client.memory import usable_bytes
from polytempo_client.model.schema import Schema
from polytempo_client.protocol.framing import CHANNEL_OPTIONS, SERVICE, frames
from polytempo_client.protocol.wire_pb2 import Enrolled, Enrolment, Frame, Head
from polytempo_client.session.addresses import check_loopback
from polytempo_client.session.credentials import hash_of

SESSIONS = 3
"""With one token at a time: the one that counts, and some that have not noticed yet that they are over."""
LINGER = 5.0
"""Seconds that the last messages of a session that ends may take."""
HANDSHAKE_SECONDS = 20.0
STRANGERS = 4096
"""Connections without a session at a time, or ``limits.clients`` if that is more: all clients may come at once. Beyond
them the oldest are closed."""
SPARED_FILES = 256
"""Files that connections leave to the journal, the log, the roster and the operators' listener."""
SERVER_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", int(1e3 * HANDSHAKE_SECONDS)),  # a connection that never speaks
    ("grpc.max_connection_idle_ms", 60_000),  # one that opens no session
    ("grpc.max_concurrent_streams", 8),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a few bytes must not become many
    # What was read is parsed, also when its connection has been closed.
    ("grpc.experimental.tcp_max_read_chunk_size", 1 << 16),
)
NOT_HERE = "not here"
"""How the end of a call begins that sends a client to its next address."""
PENDING_CALLS = 4096
"""Calls that have not been looked at yet, at a time, or ``limits.sessions`` if that is more. They hold memory."""


class Server:
    """Sessions of clients, whose requests are submitted to a host. With ``mutual`` a client has to show its own
    certificate beside its token."""

    def __init__(self, submit: Callable[[Request], None], schema: Schema, shared: Shared, mutual: bool = False) -> None:
        self._submit, self._shared, self._mutual = submit, shared, mutual
        self._access, self._meters = shared.access, shared.meters
        self._open: set[GrpcSession] = set()
        self._sessions: Counter[int] = Counter()
        self._calls: Counter[str] = Counter()
        """With each token: its sessions, and those that are over but whose client does not read their end."""
        self._rates: defaultdict[int, RateLimit] = defaultdict(RateLimit)
        self._memory = Memory()
        self._loop = asyncio.get_running_loop()
        self._draining = False
        self._elsewhere: str | None = None
        """Why clients are sent to their next address."""
        self._guard: FloodGuard | None = None
        self._streams: set[tuple[Peer, Incoming]] = set()
        """Of the open sessions."""
        self._usable_bytes = usable_bytes()
        self._meters.mutual = mutual
        self._meters.incoming_bytes = lambda: self._memory.taken
        self._enforced: tuple[Roster, float] | None = None
        self._largest = largest_message(schema)
        pending = max(PENDING_CALLS, self._limits.sessions)
        bounds = (
            ("grpc.max_allowed_incoming_connections", _most_connections()),
            ("grpc.server.max_pending_requests", pending),
            ("grpc.server.max_pending_requests_hard_limit", pending),
        )
        self._server = grpc.aio.server(options=(*SERVER_OPTIONS, *bounds))
        handlers: dict[str, Any] = {
            "Session": grpc.stream_stream_rpc_method_handler(self._session, Frame.FromString, Frame.SerializeToString),
            # As a stream, because gRPC would wait for a single message for ever.
            "Enrol": grpc.stream_unary_rpc_method_handler(
                Enrolments(shared, mutual, self.enforce).enrol, Enrolment.FromString, Enrolled.SerializeToString
            ),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))

    def listen(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        """The port that is listened on. Without credentials only on loopback."""
        if credentials is None:
            check_loopback(address)
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            raise cannot_listen(address, "--listen") from None
        self._guard = FloodGuard(port, self._accounted, self._bounds, self._is_short, self._flooded)
        return port

    async def start(self) -> None:
        await self._server.start()
        strangers = self._bounds().strangers
        if strangers < self._limits.clients:
            reason = "Too few files may be open for all clients to connect at once. Raise `ulimit -n` (LimitNOFILE)."
            log("few files", level=logging.WARNING, at_once=strangers, clients=self._limits.clients, reason=reason)
        if self._guard is not None:
            self._guard.start()

    def let_in(self, submit: Callable[[Request], None]) -> None:
        """From now on this server has the service: its host is given the requests."""
        self._submit, self._elsewhere = submit, None

    def turn_away(self, reason: str) -> None:
        """Another server has the service, or will have it: send those who come to their next address."""
        self._elsewhere = reason

    def end_sessions(self) -> None:
        """Send everybody else there, too: nobody answers them here any more."""
        self._submit = _release
        for session in self._open:
            session.end()
        self._shared.outbox.deliver()

    def drain(self) -> None:
        """Let nobody new in."""
        self._draining = True
        log("draining", level=logging.WARNING, sessions=len(self._open))

    async def close(self) -> None:
        """End when what was sent is out."""
        await self._server.stop(grace=1.0)
        if self._guard is not None:
            self._guard.stop()

    def enforce(self) -> None:
        """End the sessions of those who may not talk to the server any more."""
        roster, now = self._access.roster, time.monotonic()
        if self._enforced is not None and self._enforced[0] is roster and now < self._enforced[1] + 1.0:
            return
        self._enforced = roster, now
        for session in self._open:
            reason = roster.objection(session.client, session.token_hash, self._access.now())
            if reason is not None and session.expelled is None:
                log("expelled", level=logging.WARNING, client=session.client, reason=reason)
                session.expelled = reason
                session.ended.set()

    @property
    def _limits(self) -> Limits:
        return self._shared.operations.limits

    # What the flood guard asks and tells, on its thread.

    def _accounted(self) -> Mapping[Peer, int]:
        accounted: Counter[Peer] = Counter()
        for peer, incoming in tuple(self._streams):
            accounted[peer] += incoming.received
        return accounted

    def _bounds(self) -> Bounds:
        strangers = min(max(STRANGERS, self._limits.clients), _most_connections() // 2)
        return Bounds(strangers, HANDSHAKE_SECONDS + self._limits.hello_seconds)

    def _is_short(self) -> bool:
        resident = resident_bytes()
        return resident is not None and resident > (self._limits.resident_bytes or self._usable_bytes // 2)

    def _flooded(self, closed: list[Closed]) -> None:
        self._meters.refusals.update(one.reason for one in closed)
        worst = max(closed, key=lambda one: one.bytes)
        host, port = worst.peer
        log(
            "connection closed",
            level=logging.WARNING,
            peer=f"{host} port {port}",
            bytes=worst.bytes,
            reason=worst.reason,
            others=len(closed) - 1,
        )

    # Sessions.

    async def _session(self, _: Any, context: Context) -> None:
        if self._elsewhere is not None:  # before anything else: who may talk here is the leader's to say
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{NOT_HERE}: {self._elsewhere}")
        client, token_hash = await self._who(context)
        await self._admit(client, token_hash, context)
        self._calls[token_hash] += 1
        try:
            expires = certificate_end(context) if self._mutual else None
            session = GrpcSession(client, token_hash, self._shared.outbox, expires)
            unread = await self._converse(session, context)
            # By now the session holds nothing. The call ends when its client reads on, or is gone.
            if session.expelled is not None:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, session.expelled)
            if unread:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "what was sent was not read in time")
        finally:
            self._calls[token_hash] -= 1
            if not self._calls[token_hash]:
                del self._calls[token_hash]

    async def _converse(self, session: GrpcSession, context: Context) -> bool:
        """Until one side ends the session. Is there something left that the client does not read?"""
        client = session.client
        self._sessions[client] += 1
        self._open.add(session)
        self._meters.sessions = len(self._open)
        log("connected", level=logging.WARNING, client=client, peer=context.peer())
        incoming = Incoming(context.read, lambda: self._limits, self._largest, self._memory, client)
        stream = peer_named(context.peer()), incoming
        self._streams.add(stream)
        reading = asyncio.create_task(self._read(session, incoming))
        writing = asyncio.create_task(self._write(session, context))
        ending = asyncio.create_task(session.ended.wait())
        try:
            await asyncio.wait((reading, writing, ending), return_when=asyncio.FIRST_COMPLETED)
            if session.expelled is None:
                # A message that is being written has to go out: gRPC could not end the call behind half a message.
                session.end()
                session.news.set()
                await asyncio.wait((writing,), timeout=LINGER)
            return not writing.done() or writing.exception() is not None
        finally:
            for side in (reading, writing, ending):
                side.cancel()
            incoming.close()
            self._streams.discard(stream)
            self._open.discard(session)
            self._meters.sessions = len(self._open)
            self._sessions[client] -= 1
            if not self._sessions[client]:
                del self._sessions[client]
            self._submit(Request(session, "expelled" if session.expelled else "gone", Head(), bytearray()))
            log("disconnected", client=client)

    async def _who(self, context: Context) -> tuple[int, str]:
        """The client that the token names, and the token's hash."""
        header = dict(context.invocation_metadata() or ()).get("authorization", "")
        kind, _, token = str(header).partition(" ")
        self._access.refresh()  # a token that was made a moment ago counts
        if self._access.is_blind:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server cannot read who may talk to it")
        roster = self._access.roster
        client = roster.client_of(token, self._access.now()) if kind == "Bearer" else None
        if client is None or not self._shows_certificate_of(client, context):
            reason = "no client has this token, or it has expired"
            if client is not None:
                reason = f"the certificate shown is not that of client {client}, whose token this is"
            await self._turn_away(context, grpc.StatusCode.UNAUTHENTICATED, "token", reason)
        if client in roster.quarantined:
            reason = in_quarantine(roster.quarantined[client])
            await self._turn_away(context, grpc.StatusCode.PERMISSION_DENIED, "quarantined", reason)
        return cast("int", client), hash_of(token)

    async def _turn_away(self, context: Context, code: grpc.StatusCode, kind: str, reason: str) -> None:
        """Raises."""
        self._meters.refusals[kind] += 1
        log("turned away", level=logging.WARNING, peer=context.peer(), reason=reason)
        await context.abort(code, reason)

    def _shows_certificate_of(self, client: int, context: Context) -> bool:
        return not self._mutual or common_names(context) == (client_name(client),)

    async def _admit(self, client: int, token_hash: str, context: Context) -> None:
        """Turn away, for now, who would be one too many."""
        problem = None
        if self._draining:
            problem = RESTARTS
        elif self._calls[token_hash] >= SESSIONS:
            problem = "this client has too many sessions open"
        elif len(self._open) >= self._limits.sessions:
            problem = "the server has too many sessions open"
        elif not self._sessions[client] and len(self._sessions) >= self._limits.clients:
            problem = "the server has too many clients"
        if problem is not None:
            if problem != RESTARTS:
                self._meters.refusals["session"] += 1
            code = grpc.StatusCode.UNAVAILABLE if problem == RESTARTS else grpc.StatusCode.RESOURCE_EXHAUSTED
            await context.abort(code, problem)

    async def _read(self, session: GrpcSession, incoming: Incoming) -> None:
        while True:
            charge = None
            try:
                whole = await incoming.next_message()
                if whole is None:
                    return
                head, body, charge = whole
                kind = _checked_kind(session, head)
            except (WireError, BusyError) as error:
                if charge is not None:
                    charge.release()
                if isinstance(error, BusyError):
                    self._has_no_memory(session)
                else:  # the host refuses it, and ends the session
                    self._submit(Request(session, "wire", Head(), bytearray(), str(error)))
                await asyncio.Event().wait()  # the writer ends the session when that is out
                return
            self._meters.bytes_in += len(body)
            session.greeted = True
            session.waiting[head.request] = self._loop.time()
            try:
                pause = self._rates[session.client].take_turn(self._loop.time(), self._limits.requests_per_second)
                if pause:
                    await asyncio.sleep(pause)
                await session.room.acquire()
            except asyncio.CancelledError:
                charge.release()
                raise
            sent = incoming.sent_bytes, incoming.sent_seconds
            self._submit(Request(session, kind, head, body, "", charge.release, *sent))

    def _has_no_memory(self, session: GrpcSession) -> None:
        self._meters.refusals["memory"] += 1
        most, held = self._memory.largest() or (None, 0)
        log(
            "no memory",
            level=logging.WARNING,
            client=session.client,
            taken=self._memory.taken,
            most_held_by=most,
            bytes=held,
        )
        session.send(messages.refusal("the server has no memory left for this at the moment", again=True))
        session.end()
        self._shared.outbox.deliver()

    async def _write(self, session: GrpcSession, context: Context) -> None:
        while True:
            await session.news.wait()
            session.news.clear()
            while session.messages:
                item = session.messages.popleft()
                if item is None:
                    return
                (head, body), request = item
                head.answers = request
                for frame in frames(head, body):
                    async with asyncio.timeout(self._limits.unread_seconds):
                        await context.write(frame)
                self._meters.bytes_out += head.size
                if request:
                    self._meters.count_reply(self._loop.time() - session.waiting.pop(request))
                    session.room.release()


def _checked_kind(session: GrpcSession, head: Head) -> RequestKind:
    """What the client wants."""
    kind = head.WhichOneof("kind")
    if kind not in get_args(RequestKind):
        raise WireError(f"a client sent a message of kind {kind}")
    if kind != "hello" and not session.greeted:
        raise WireError(f"a session has to begin with hello, and this one did with {kind}")
    if not head.request or head.request in session.waiting:
        raise WireError(f"a client sent a {kind} without a number of its own")
    return cast("RequestKind", kind)


def _release(request: Request) -> None:
    """Nobody answers it."""
    request.release()


def _most_connections() -> int:
    """Who opens connections and says nothing must not use up the files that the service needs itself."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 - 1 if files == resource.RLIM_INFINITY else max(files - SPARED_FILES, files // 2)
