"""The clients of ``soak.py``: they pretend to train, come and go, crash, and some of them send rubbish; and strangers,
who have no business there. All in one process, each a coroutine."""

import asyncio
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
from serving_load import OPTIONS, Conversation, model_tensors

from polytempo.core.errors import UserError
from polytempo_client.model.encodings import parse_encoding
from polytempo_client.protocol.bodies import entry_of, make_body
from polytempo_client.protocol.framing import SESSION, frames
from polytempo_client.protocol.wire_pb2 import Head, Hello, Leave, Pull, Push, Ready
from polytempo_client.session.credentials import read_token
from polytempo_client.session.enrolment import enrol_client
from polytempo_client.streams import stream

ANSWER_LIMIT = 60.0
"""Seconds after which a client without an answer, on a connection that stands, counts as hanging."""
VARIANTS = 8
"""Of what clients push."""
ENCODINGS = ("", "", "fp16", "topk:0.05")
"""How they push it, one client after the other."""
ROGUES = 0.1
"""Share of the clients that send rubbish every other time, ..."""
HASTE = (0.1, 2.0)
"""... and how long they pretend to train, in multiples of what others do, from the first of them to the last: some have
to end in quarantine, and some should go on sending rubbish to the end."""
STRANGERS = 12
TELL_EVERY = 0.5
"""Seconds."""
HABITS = {"push": 0.86, "leave": 0.03, "half": 0.03, "unread": 0.03, "pull": 0.03, "vanish": 0.02}
"""What a client does when it has trained, and how often: push; leave and come again; break off in the middle of the
push; break off before the answer; ask for its model too; be away for longer than the server's patience."""
RUBBISH = {"shape": 0.2, "nan": 0.2, "noise": 0.15, "task": 0.15, "base": 0.15}
RUBBISH |= {"oversize": 0.06, "headless": 0.06, "half and silent": 0.03}
"""What a rogue sends instead, and how often; the last three cost it its session."""


@dataclass(frozen=True)
class Plan:
    """What the clients are told."""

    directory: Path
    port: int
    clients: int
    rate: float
    """Updates per second, of all of them."""
    parameters: int
    patience: float
    seed: int

    def is_rogue(self, client: int) -> bool:
        return client < ROGUES * self.clients


@dataclass
class Told:
    """What happened since it was last told."""

    begun: list[tuple[int, int]] = field(default_factory=list)
    """Client and task, before it is pushed for the first time, ..."""
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    """... and when the server has said that it is safe."""
    latencies: list[tuple[float, float]] = field(default_factory=list)
    """When an answer came, and after how many seconds."""
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def run_clients(driver: Connection, plan: Plan) -> None:
    """Until the driver says something; then finish what is under way."""
    asyncio.run(_run(driver, plan))


async def _run(driver: Connection, plan: Plan) -> None:
    crowd = _Crowd(plan)
    clients = [asyncio.create_task(_Client(crowd, number).live()) for number in range(plan.clients)]
    strangers = [asyncio.create_task(_stranger(crowd, number)) for number in range(STRANGERS)]
    while not driver.poll():
        await asyncio.sleep(TELL_EVERY)
        driver.send(crowd.take_told())
    crowd.stopping.set()
    for stranger in strangers:
        stranger.cancel()
    _, late = await asyncio.wait(clients, timeout=2 * ANSWER_LIMIT)
    crowd.told.faults += [f"{len(late)} clients did not come to an end"] if late else []
    for client in late:
        client.cancel()
    for ended in await asyncio.gather(*clients, return_exceptions=True):
        if isinstance(ended, Exception):
            crowd.told.faults.append(f"a client failed: {ended!r}")
    driver.send(crowd.take_told())
    driver.send(None)


class _Crowd:
    """What all clients share."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stopping = asyncio.Event()
        self.told = Told()
        self.address = f"localhost:{plan.port}"
        self.ca = plan.directory / "ca.pem"
        self._tensors = model_tensors(plan.parameters)
        self.body = _body(self._tensors)
        rng = stream(plan.seed, "soak-bodies")
        noises = [rng.normal(0, 0.1, plan.parameters).astype(np.float32) for _ in range(VARIANTS)]
        self.bodies = {name: [self._pushed(name, noise) for noise in noises] for name in set(ENCODINGS)}
        """What clients push, by encoding."""

    def _pushed(self, encoding: str, noise: np.ndarray) -> list[bytes]:
        if encoding:
            return _body(parse_encoding(encoding).encode(noise))
        parts = np.split(noise, len(self._tensors))
        return _body({name: array + part for (name, array), part in zip(self._tensors.items(), parts, strict=True)})

    def take_told(self) -> Told:
        told, self.told = self.told, Told()
        return told

    @asynccontextmanager
    async def session(self, token: str, client: int) -> AsyncIterator[Conversation]:
        channel = grpc.aio.secure_channel(self.address, self.credentials(client), options=OPTIONS)
        try:
            yield Conversation(channel.stream_stream(SESSION)(metadata=(("authorization", f"Bearer {token}"),)))
        finally:
            await channel.close()

    def credentials(self, client: int) -> grpc.ChannelCredentials:
        key, certificate = (self.plan.directory / f"client-{client}.{ending}" for ending in ("key", "pem"))
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), key.read_bytes(), certificate.read_bytes())

    def rubbish(self, kind: str, random: np.random.Generator) -> list[bytes]:
        """A body that must be refused."""
        if kind == "shape":
            return _body({name: array[:-1] for name, array in self._tensors.items()})
        if kind == "nan":
            return _body({name: np.full_like(array, np.nan) for name, array in self._tensors.items()})
        if kind == "noise":
            return [random.bytes(sum(map(len, self.body)))]
        return self.body

    async def pause(self, seconds: float) -> None:
        """Not longer than until the end."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self.stopping.wait(), seconds)


def _body(tensors: dict[str, np.ndarray]) -> list[bytes]:
    body = make_body(tuple(entry_of(name, array) for name, array in tensors.items()), list(tensors.values()))
    return [frame.data for frame in frames(Head(), body)]


class _Client:
    """One client. ``task`` is what it has to do, ``pushed``: its result was sent, and maybe not answered."""

    def __init__(self, crowd: _Crowd, number: int) -> None:
        self.crowd, self.number = crowd, number
        self.random = stream(crowd.plan.seed, "soak-client", number)
        self.rogue = crowd.plan.is_rogue(number)
        ranks = ROGUES * crowd.plan.clients
        haste = HASTE[0] + (HASTE[1] - HASTE[0]) * number / ranks if self.rogue else 1.0
        self.training = haste * crowd.plan.clients / crowd.plan.rate
        """Seconds, on average."""
        self.token = read_token(crowd.plan.directory / f"client-{number}.token")
        self.encoding = "" if self.rogue else ENCODINGS[number % len(ENCODINGS)]
        self.task = 0
        self.pushed = False

    async def live(self) -> None:
        """One session after the other."""
        away = self.random.uniform(0, 5)
        while not (self.crowd.stopping.is_set() and (self.rogue or not self.pushed)):
            await self.crowd.pause(away)
            try:
                async with self.crowd.session(self.token, self.number) as session:
                    away = await self._session(session)
            except (grpc.aio.AioRpcError, ConnectionError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                    raise
                self._count_end(error)
                away = self.random.uniform(0.2, 2)
                await self._enrol_if_told()
            except TimeoutError:
                self.crowd.told.faults.append(f"client {self.number} had no answer within {ANSWER_LIMIT:.0f} s")
                away = 1.0
            if self.crowd.stopping.is_set():
                away = 0.0
                await asyncio.sleep(0.2)

    async def _enrol_if_told(self) -> None:
        """Whoever was revoked and given a code makes a new token of it. What it had in hand is void."""
        plan = self.crowd.plan
        code, token = plan.directory / "codes" / str(self.number), plan.directory / f"again-{self.number}.token"
        if not code.exists():
            return
        pair = tuple(plan.directory / f"client-{self.number}.{ending}" for ending in ("pem", "key"))
        token.unlink(missing_ok=True)
        try:
            await asyncio.to_thread(enrol_client, self.crowd.address, code.read_text(), token, self.crowd.ca, pair)
        except UserError:  # the server is down
            self.crowd.told.counts["enrolment: again later"] += 1
            return
        code.unlink()
        self.token, self.task = read_token(token), 0
        self.pushed = False
        self.crowd.told.counts["enrolled anew"] += 1

    def _count_end(self, error: BaseException) -> None:
        code = error.code().name.lower() if isinstance(error, grpc.aio.AioRpcError) else "ended"
        self.crowd.told.counts[f"{'rogue' if self.rogue else 'client'} session: {code}"] += 1

    async def _session(self, session: Conversation) -> float:
        """Until it breaks off; the seconds that it stays away then."""
        wishes = {"uploads": [self.encoding], "downloads": ["fp16"]} if self.encoding else {}
        welcome = await self._ask(session, Head(hello=Hello(task=self.task, heeded=self.task, **wishes)))
        if not welcome.HasField("welcome"):
            raise ConnectionError
        if self.pushed:
            await self._push(session)  # again: the answer was lost
        elif welcome.welcome.task != self.task:
            self.task = 0
        while not self.crowd.stopping.is_set():
            if not self.task:
                await self._get_task(session)
            await self.crowd.pause(self.random.exponential(self.training))
            if self.crowd.stopping.is_set():
                break
            if self.rogue and self.random.random() < 0.5:
                kind = self.random.choice(list(RUBBISH), p=list(RUBBISH.values()))
                self.crowd.told.counts[f"rubbish: {kind}"] += 1
                await self._send_rubbish(session, kind)
                continue
            habit = self.random.choice(list(HABITS), p=list(HABITS.values()))
            self.crowd.told.counts[habit] += 1
            away = await self._do(session, habit)
            if away is not None:
                return away
        return 0.0

    async def _do(self, session: Conversation, habit: str) -> float | None:
        """Seconds until it comes again; None if it goes on."""
        if habit == "leave":
            await self._ask(session, Head(leave=Leave()))
            self.task = 0
            return self.random.uniform(1, 20)
        if habit == "vanish":
            return self.crowd.plan.patience * 1.5
        if habit == "half":
            half = self.crowd.body[0][: len(self.crowd.body[0]) // 2]
            await session.send(self._push_head(sum(map(len, self.crowd.body))), [half])
            return self.random.uniform(0.1, 3)
        if habit == "unread":
            self._begin_push()
            body = self._body()
            await session.send(self._push_head(sum(map(len, body)), encoding=self.encoding), body)
            return self.random.uniform(0.1, 3)
        if habit == "pull":
            await self._ask(session, Head(pull=Pull()))
        await self._push(session)
        return None

    async def _get_task(self, session: Conversation) -> None:
        answer = await self._ask(session, Head(ready=Ready()))
        while not answer.HasField("task"):
            if answer.HasField("refusal"):
                raise ConnectionError(answer.refusal.reason)
            answer = await asyncio.wait_for(session.receive(), ANSWER_LIMIT)
        self.task = answer.task.number

    def _push_head(self, size: int = 0, **changed: Any) -> Head:
        fields = {"task": self.task, "base": self.task, "samples": 1, "steps": 1, "ready": True, **changed}
        return Head(request=1 << 30, size=size, push=Push(**fields))

    def _body(self) -> list[bytes]:
        """What is pushed for the task: the same again if it is."""
        return self.crowd.bodies[self.encoding][self.task % VARIANTS]

    def _begin_push(self) -> None:
        if not self.pushed:
            self.crowd.told.begun.append((self.number, self.task))
        self.pushed = True

    async def _push(self, session: Conversation) -> None:
        first = not self.pushed
        self._begin_push()
        began = time.monotonic()
        answer = await self._ask(session, self._push_head(encoding=self.encoding), self._body())
        kind = answer.WhichOneof("kind")
        if kind == "refusal" and answer.refusal.again:
            self.crowd.told.counts["push: try again"] += 1
            raise ConnectionError(answer.refusal.reason)
        if kind == "refusal":  # it was away for too long, and its task is another's
            self.crowd.told.counts["push: refused" if first else "push: void when repeated"] += 1
        else:
            self.crowd.told.acknowledged.append((self.number, self.task))
            self.crowd.told.latencies.append((time.time(), time.monotonic() - began))
        self.task = answer.task.number if kind == "task" else 0
        self.pushed = False

    async def _send_rubbish(self, session: Conversation, kind: str) -> None:
        """It has to be refused, or to end the session."""
        counts = self.crowd.told.counts
        if kind == "headless":
            await session.send(Head(), self.crowd.body)
        elif kind == "oversize":
            await session.send(self._push_head(1 << 45), [b"much more will come"])
        elif kind == "half and silent":
            await session.send(self._push_head(1 << 16), [b"no more will come"])
        else:
            changed = {kind: self.task + 1_000_000} if kind in ("task", "base") else {}
            body = self.crowd.rubbish(kind, self.random)
            answer = await self._ask(session, self._push_head(**changed), body)
            if not answer.HasField("refusal"):
                self.crowd.told.faults.append(f"rubbish ({kind}) was answered with {answer.WhichOneof('kind')}")
            return
        answer = await asyncio.wait_for(session.receive(), ANSWER_LIMIT)
        counts["told why its session ended"] += answer.HasField("refusal")

    async def _ask(self, session: Conversation, head: Head, data: Sequence[bytes] = ()) -> Head:
        return await asyncio.wait_for(session.ask(head, data), ANSWER_LIMIT)


# Strangers.


async def _stranger(crowd: _Crowd, number: int) -> None:
    """Comes again and again with something else."""
    random = stream(crowd.plan.seed, "soak-stranger", number)
    tries = {"unknown token": _unknown_token, "mute": _mute, "noisy": _noisy, "mute in TLS": _mute_in_tls}
    while True:
        await asyncio.sleep(random.uniform(1, 10))
        name = list(tries)[random.integers(len(tries))]
        crowd.told.counts[f"stranger: {name}"] += 1
        with suppress(OSError, TimeoutError, ssl.SSLError):  # the server is down, or ends it, as it should
            await tries[name](crowd, random)


async def _unknown_token(crowd: _Crowd, random: np.random.Generator) -> None:
    try:
        async with crowd.session(random.bytes(16).hex(), 0) as session:
            answer = await asyncio.wait_for(session.ask(Head(hello=Hello())), ANSWER_LIMIT)
        crowd.told.faults.append(f"a stranger was answered with {answer.WhichOneof('kind')}")
    except grpc.aio.AioRpcError as error:
        if error.code() not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE):
            crowd.told.counts[f"stranger: {error.code().name.lower()}"] += 1


async def _mute(crowd: _Crowd, random: np.random.Generator) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", crowd.plan.port)
    await asyncio.sleep(random.uniform(5, 90))
    writer.close()


async def _noisy(crowd: _Crowd, random: np.random.Generator) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", crowd.plan.port)
    writer.write(random.bytes(1 << 16))
    await writer.drain()
    writer.close()


async def _mute_in_tls(crowd: _Crowd, random: np.random.Generator) -> None:
    context = ssl.create_default_context(cafile=str(crowd.ca))
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection("localhost", crowd.plan.port, ssl=context)
    if random.random() < 0.5:
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    await asyncio.sleep(random.uniform(5, 90))
    writer.close()
