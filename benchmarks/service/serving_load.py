"""Exchanges per second of a server (an update in, journalled and synced, the next task out) and how long one takes.

All on loopback and in plaintext, beside what the machine allows, measured in the same run: a bare grpc.aio echo of the
same bytes, as a call per exchange and as frames over one open stream per client (as we do it), and the disk's
bandwidth for synced appends.

    python benchmarks/service/serving_load.py [--seconds 10] [--repeats 3]
    python benchmarks/service/serving_load.py --soak 600      # memory of the server under load for ten minutes
"""

import argparse
import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
from safetensors.numpy import save_file

from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal.settings import make_settings
from polytempo.serve.paths import OPERATIONS
from polytempo.serve.process.backup import put_document
from polytempo.serve.process.options import Endpoints, ServeOptions
from polytempo.serve.process.running import serve
from polytempo_client.protocol.bodies import entry_of, make_body
from polytempo_client.protocol.framing import CHANNEL_OPTIONS, SESSION, frames
from polytempo_client.protocol.wire_pb2 import Frame, Head, Hello, Push, Ready
from polytempo_client.session.credentials import read_token

CASES = [(1_000, 4), (1_000, 200), (600_000, 4), (600_000, 200)]
SYNCED_BYTES = 2_400_000
STREAMS = 8
"""Of one connection: the server takes no more."""
OPTIONS = (
    *((name, value) for name, value in CHANNEL_OPTIONS if name != "grpc.max_receive_message_length"),
    ("grpc.max_receive_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass
class Measured:
    seconds: float
    latencies: list[float]

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.seconds

    def milliseconds(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return 1e3 * ordered[min(int(share * len(ordered)), len(ordered) - 1)]


# The servers, each in a process of its own.


def serve_echo(port: Connection) -> None:
    async def call(message: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return message

    async def session(_: object, context: grpc.aio.ServicerContext) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    async def run() -> None:
        server = grpc.aio.server(options=OPTIONS)
        handlers = {
            "Call": grpc.unary_unary_rpc_method_handler(call),
            "Session": grpc.stream_stream_rpc_method_handler(session),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", handlers),))
        port.send(server.add_insecure_port("127.0.0.1:0"))
        await server.start()
        await server.wait_for_termination()

    asyncio.run(run())


def serve_polytempo(port: Connection, directory: Path) -> None:
    settings = make_settings(strategy="fedasync", init=directory / "init.safetensors", steps=1)

    def on_listening(at: Any) -> None:
        port.send(int(at.address.rpartition(":")[2]))

    async def run() -> None:
        options = ServeOptions(directory, settings, Endpoints("127.0.0.1:0", insecure=True), log_level="error")
        stop, again = asyncio.Event(), asyncio.Event()
        await serve(options, stop, again, on_listening)

    asyncio.run(run())


@contextmanager
def process(target: Callable[..., None], *arguments: object) -> Iterator[tuple[int, int]]:
    """A server's port and process number."""
    here, there = multiprocessing.Pipe()
    running = multiprocessing.get_context("spawn").Process(target=target, args=(there, *arguments), daemon=True)
    running.start()
    try:
        yield here.recv(), running.pid or 0
    finally:
        running.kill()
        running.join()


# The load: all clients in this process.


@dataclass
class Run:
    """So many seconds from when all clients are ready."""

    ready: asyncio.Barrier
    seconds: float
    latencies: list[float] = field(default_factory=list)

    async def exchanges(self) -> AsyncIterator[None]:
        await self.ready.wait()
        ends = time.perf_counter() + self.seconds
        while (began := time.perf_counter()) < ends:
            yield
            done = time.perf_counter()
            if done <= ends:
                self.latencies.append(done - began)


async def calling_client(open_call: Any, messages: list[bytes], run: Run) -> None:
    message = b"".join(messages)
    async for _ in run.exchanges():
        await open_call(message)


async def streaming_client(open_call: Any, messages: list[bytes], run: Run) -> None:
    call = open_call()
    async for _ in run.exchanges():
        for message in messages:
            await call.write(message)
        for _ in messages:
            await call.read()
    call.cancel()


class Conversation:
    """A client's session with our server, without a model: bodies go out as they are given, and are not kept."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._requests = 0
        self.unasked: list[Head] = []
        """What came and was no answer."""

    async def ask(self, head: Head, data: Sequence[bytes] = ()) -> Head:
        self._requests += 1
        head.request, head.size = self._requests, sum(map(len, data))
        await self.send(head, data)
        while (answer := await self.receive()).answers != head.request:
            self.unasked.append(answer)
        return answer

    async def send(self, head: Head, data: Sequence[bytes] = ()) -> None:
        await self._call.write(Frame(head=head, data=data[0] if data else b"").SerializeToString())
        for piece in data[1:]:
            await self._call.write(Frame(data=piece).SerializeToString())

    async def receive(self) -> Head:
        frame = await self._frame()
        left = frame.head.size - len(frame.data)
        while left:
            left -= len((await self._frame()).data)
        return frame.head

    async def _frame(self) -> Frame:
        read = await self._call.read()
        if read is grpc.aio.EOF:
            raise ConnectionError("the server has ended the session")
        return Frame.FromString(read)


async def polytempo_client(open_call: Any, pieces: list[bytes], run: Run) -> None:
    call = open_call()
    session = Conversation(call)
    await session.ask(Head(hello=Hello()))
    task = (await session.ask(Head(ready=Ready()))).task.number
    async for _ in run.exchanges():
        answer = await session.ask(Head(push=Push(task=task, base=task, samples=1, steps=1, ready=True)), pieces)
        assert answer.HasField("task"), answer
        task = answer.task.number
    call.cancel()


async def load(
    client: Callable[..., Awaitable[None]], method: str, port: int, data: list[bytes], tokens: list[str], seconds: float
) -> Measured:
    """As many clients as tokens, for so many seconds."""
    connections = -(-len(tokens) // STREAMS)
    channels = [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) for _ in range(connections)]
    kinds = [channel.unary_unary if client is calling_client else channel.stream_stream for channel in channels]
    open_calls = [
        partial(kinds[i % len(kinds)](method), metadata=(("authorization", f"Bearer {token}"),))
        for i, token in enumerate(tokens)
    ]
    run = Run(asyncio.Barrier(len(tokens)), seconds)
    await asyncio.gather(*(client(open_call, data, run) for open_call in open_calls))
    for channel in channels:
        await channel.close()
    return Measured(seconds, run.latencies)


def model_tensors(parameters: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {f"layer{i}.weight": rng.normal(size=parameters // 4).astype(np.float32) for i in range(4)}


def pieces_of(parameters: int) -> list[bytes]:
    """A pushed model, as the data of its frames."""
    tensors = model_tensors(parameters)
    body = make_body(tuple(entry_of(name, array) for name, array in tensors.items()), list(tensors.values()))
    return [frame.data for frame in frames(Head(), body)]


def measure_echoes(parameters: int, clients: int, seconds: float) -> tuple[Measured, Measured]:
    """A call per exchange, and an open stream per client."""
    data, tokens = pieces_of(parameters), [""] * clients
    with process(serve_echo) as (port, _):
        called = asyncio.run(load(calling_client, "/echo/Call", port, data, tokens, seconds))
        return called, asyncio.run(load(streaming_client, "/echo/Session", port, data, tokens, seconds))


@contextmanager
def polytempo(parameters: int, clients: int, directory: Path) -> Iterator[tuple[int, int, list[str]]]:
    """A server's port and process number, and its clients' tokens."""
    make_tokens(directory, clients)
    put_document(directory, OPERATIONS, b"[limits]\nrequests_per_second = 1e9\n")
    save_file(model_tensors(parameters), directory / "init.safetensors")
    tokens = [read_token(directory / f"client-{client}.token") for client in range(clients)]
    with process(serve_polytempo, directory) as (port, number):
        yield port, number, tokens


def measure_polytempo(parameters: int, clients: int, seconds: float, directory: Path) -> Measured:
    with polytempo(parameters, clients, directory) as (port, _, tokens):
        return asyncio.run(load(polytempo_client, SESSION, port, pieces_of(parameters), tokens, seconds))


def measure_disk(directory: Path, seconds: float = 2.0) -> float:
    """Bytes per second of appends that are synced one by one."""
    data, count = os.urandom(SYNCED_BYTES), 0
    file = os.open(directory / "disk", os.O_CREAT | os.O_WRONLY)
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        os.write(file, data)
        os.fdatasync(file)
        count += 1
    os.close(file)
    (directory / "disk").unlink()
    return count * SYNCED_BYTES / spent


@dataclass
class Compared:
    """One repetition of a case: ours, both echoes, and what the disk allows per second."""

    ours: Measured
    called: Measured
    streamed: Measured
    disk: float

    @property
    def ratio(self) -> float:
        """Of the smaller of a bare echo and the disk."""
        return self.ours.rate / min(self.called.rate, self.disk)

    @property
    def stream_ratio(self) -> float:
        return self.ours.rate / min(self.streamed.rate, self.disk)


def compare(parameters: int, clients: int, seconds: float) -> Compared:
    with tempfile.TemporaryDirectory() as name:
        called, streamed = measure_echoes(parameters, clients, seconds)
        disk = measure_disk(Path(name)) / sum(map(len, pieces_of(parameters)))
        ours = measure_polytempo(parameters, clients, seconds, Path(name))
    return Compared(ours, called, streamed, disk)


def soak(parameters: int, clients: int, seconds: float) -> None:
    """Memory of the server, ten times on the way."""
    with tempfile.TemporaryDirectory() as name, polytempo(parameters, clients, Path(name)) as (port, number, tokens):

        async def run() -> None:
            loading = asyncio.create_task(load(polytempo_client, SESSION, port, pieces_of(parameters), tokens, seconds))
            for share in range(1, 11):
                await asyncio.sleep(seconds / 10)
                kept = sum(path.stat().st_size for path in (Path(name) / "journal").iterdir()) / 1e6
                print(
                    f"{share * seconds / 10:>6.0f} s  memory {memory(number):>7.1f} MB  journal {kept:>7.1f} MB",
                    flush=True,
                )
            done = await loading
            print(f"{len(done.latencies)} exchanges, {done.rate:.0f}/s")

        asyncio.run(run())


def memory(process_number: int) -> float:
    """Resident megabytes."""
    lines = Path(f"/proc/{process_number}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--soak", type=float, help="seconds under load, for memory")
    parser.add_argument("--cases", type=int, nargs="*", default=range(len(CASES)), help="numbers of cases")
    chosen = parser.parse_args()
    if chosen.soak:
        soak(*CASES[2], chosen.soak)
        return
    print("parameters clients  ours/s  p50 ms  p99 ms  echo/s stream/s  disk/s  ratio (each)            stream's")
    for parameters, clients in [CASES[number] for number in chosen.cases]:
        rows = [compare(parameters, clients, chosen.seconds) for _ in range(chosen.repeats)]
        rows.sort(key=lambda row: row.ratio)
        row = rows[len(rows) // 2]
        each = " ".join(f"{row.ratio:.2f}" for row in rows)
        figures = (
            f"{parameters:>10} {clients:>7} {row.ours.rate:>7.0f}",
            f"{row.ours.milliseconds(0.5):>7.1f} {row.ours.milliseconds(0.99):>7.1f}",
            f"{row.called.rate:>7.0f} {row.streamed.rate:>8.0f} {row.disk:>7.0f}",
            f"{row.ratio:>6.2f} ({each})  {row.stream_ratio:>10.2f}",
        )
        print(*figures, flush=True)


if __name__ == "__main__":
    main()
