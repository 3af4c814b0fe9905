"""Do floods from outside end a service, or keep honest clients and operators out? One server, as ``polytempo serve``
runs it (TLS, tokens, a listener for operators), is attacked on loopback, each time with bounds: headers that never end,
connections that never speak (TCP, and TLS), the same at the operators' listener, and all clients at once.

    python benchmarks/service/attack_floods.py [headers] [tcp] [tls] [operators] [sessions] [--sessions 2000]
        [--connections 10000] [--megabytes 80] [--nginx]

Meanwhile an honest client joins again and again, and a health check asks. Each row has the longest that they waited, 60
s at most, and how long it took after the attack. With ``--nginx`` clients and floods come to an nginx in front of the
server, configured by deploy/nginx.conf.
"""

import argparse
import asyncio
import http.client
import multiprocessing
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from attack_traffic import flood_headers, hold_connections
from safetensors.numpy import save_file
from serving_faults import free_port
from serving_load import OPTIONS, Conversation, memory, model_tensors, pieces_of

from polytempo import Client
from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.paths import OPERATIONS
from polytempo.serve.server.operations import Limits
from polytempo_client.protocol.framing import SESSION
from polytempo_client.protocol.wire_pb2 import Head, Hello, Push, Ready
from polytempo_client.session.credentials import read_token

PARAMETERS, PROBES = 1_000, 8
"""Numbers in the model; clients that join while others attack."""
LONGEST = 60.0
"""Seconds that anybody waits for an answer."""
NGINX = Path(__file__).parents[2] / "deploy" / "nginx.conf"


@dataclass(frozen=True)
class Service:
    """Where clients and operators reach it, and its processes by name."""

    directory: Path
    port: int
    admin: int
    secure_admin: bool
    processes: dict[str, int]

    def join(self, number: int) -> None:
        token = self.directory / f"client-{number % PROBES}.token"
        with Client(f"127.0.0.1:{self.port}", token, self.directory / "ca.pem") as client:
            client.pull(LONGEST)

    def check_health(self, _: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=LONGEST)
        if self.secure_admin:
            trusting = ssl.create_default_context(cafile=self.directory / "ca.pem")
            connection = http.client.HTTPSConnection("127.0.0.1", self.admin, timeout=LONGEST, context=trusting)
        try:
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
        finally:
            connection.close()

    def memory(self) -> dict[str, float]:
        """Resident megabytes."""
        return {name: memory(number) for name, number in self.processes.items()}


@contextmanager
def serving(directory: Path, clients: int, nginx: bool) -> Iterator[Service]:
    make_certs(directory, [])
    make_tokens(directory, clients)
    save_file(model_tensors(PARAMETERS), directory / "init.safetensors")
    limits = Limits(clients=max(clients, Limits().clients), sessions=max(2 * clients, Limits().sessions))
    table = f"[limits]\nclients = {limits.clients}\nsessions = {limits.sessions}\n"
    (directory / OPERATIONS).write_text(table + '[log]\nfile = "service.log"\n')
    port = free_port()
    admin = free_port(port + 1)
    options = ["--dir", str(directory), "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}"]
    options += ["--init", str(directory / "init.safetensors"), "--log-level", "warning"]
    command = [sys.executable, "-c", "from polytempo.cli.main import main; main()", "serve", "fedasync", *options]
    with subprocess.Popen([*command, *(["--insecure"] if nginx else [])], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            print(server.stdout.readline().strip(), flush=True)
            if not nginx:
                yield Service(directory, port, admin, True, {"server": server.pid})
                return
            with fronted(directory, port, free_port(admin + 1)) as (front, worker):
                yield Service(directory, front, admin, False, {"server": server.pid, "nginx": worker})
        finally:
            server.kill()


@contextmanager
def fronted(directory: Path, behind: int, port: int) -> Iterator[tuple[int, int]]:
    """The port of an nginx with one worker, and the worker's process."""
    text = NGINX.read_text().replace("/var/lib/polytempo", str(directory)).replace("7735", str(behind))
    text = text.replace("listen 7733", f"listen 127.0.0.1:{port}").replace("listen [::]:7733", f"listen [::1]:{port}")
    text = text.replace("/run/nginx.pid", str(directory / "nginx.pid")).replace("user www-data;", "user root;")
    text = text.replace("/var/log/nginx/error.log", str(directory / "nginx.log")).replace("auto;", "1;")
    (directory / "nginx.conf").write_text(text)
    with subprocess.Popen(["nginx", "-g", "daemon off;", "-c", directory / "nginx.conf", "-p", directory]) as nginx:
        try:
            children, deadline = Path(f"/proc/{nginx.pid}/task/{nginx.pid}/children"), time.monotonic() + 30
            while not children.read_text().split() and time.monotonic() < deadline:
                time.sleep(0.05)
            yield port, int(children.read_text().split()[0])
        finally:
            nginx.terminate()


@dataclass
class Waiting:
    """Somebody honest who asks again and again: how long each answer took."""

    ask: Callable[[int], None]
    longest: float = 0.0
    failures: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def go_on(self) -> None:
        number = 0
        while not self.over.wait(0.2):
            number += 1
            began = time.monotonic()
            try:
                self.ask(number)
            except Exception:
                self.failures += 1
            self.longest = max(self.longest, time.monotonic() - began)


def attack(service: Service, name: str, traffic: Callable[..., None], *arguments: Any) -> None:
    """Print a row."""
    before, peak = service.memory(), service.memory()
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    attacker = context.Process(target=traffic, args=(there, *arguments), daemon=True)
    honest, health = Waiting(service.join), Waiting(service.check_health)
    threads = [threading.Thread(target=one.go_on) for one in (honest, health)]
    attacker.start()
    for thread in threads:
        thread.start()
    while not here.poll(0.05):
        peak = {name: max(peak[name], now) for name, now in service.memory().items()}
    sent, connections = here.recv()
    ended = time.monotonic()
    with suppress(Exception):
        service.join(0)
    after = time.monotonic() - ended
    for one in (honest, health):
        one.over.set()
    for thread in threads:
        thread.join()
    attacker.join()
    more = ", ".join(f"{name} +{peak[name] - before[name]:.0f} MB" for name in peak)
    print(
        f"{name:<10} {sent / 1e6:>6.1f} MB sent, {connections:>6} connections; {more}; "
        f"client {honest.longest:.2f} s ({honest.failures} failed), after {after:.2f} s; "
        f"health {health.longest:.2f} s ({health.failures} failed)",
        flush=True,
    )


# All clients at once.


async def all_at_once(service: Service, clients: int) -> None:
    """Each on a connection of its own: hello, and when everybody has an answer, one update."""
    credentials = grpc.ssl_channel_credentials((service.directory / "ca.pem").read_bytes())
    address, before, began = f"127.0.0.1:{service.port}", service.memory(), time.monotonic()
    channels = [grpc.aio.secure_channel(address, credentials, OPTIONS) for _ in range(clients)]
    calls = []
    for number, channel in enumerate(channels):
        token = read_token(service.directory / f"client-{number}.token")
        calls.append(channel.stream_stream(SESSION)(metadata=(("authorization", f"Bearer {token}"),)))
    talks = [Conversation(call) for call in calls]
    greeted = await asyncio.gather(*map(partial(outcome, hello), talks, calls))
    greeting = time.monotonic() - began
    pieces = pieces_of(PARAMETERS)
    pushed = await asyncio.gather(*(outcome(partial(push, pieces), *pair) for pair in zip(talks, calls, strict=True)))
    spent, more = time.monotonic() - began, service.memory()["server"] - before["server"]
    print(
        f"sessions   hello: {dict(Counter(greeted))} in {greeting:.1f} s; "
        f"update: {dict(Counter(pushed))} in {spent:.1f} s; server +{more:.0f} MB",
        flush=True,
    )
    await asyncio.gather(*(channel.close() for channel in channels))


async def hello(talk: Conversation) -> None:
    await talk.ask(Head(hello=Hello()))


async def push(pieces: list[bytes], talk: Conversation) -> None:
    task = (await talk.ask(Head(ready=Ready()))).task.number
    answer = await talk.ask(Head(push=Push(task=task, base=task, samples=1, steps=1, ready=True)), pieces)
    assert answer.HasField("task"), answer


async def outcome(act: Callable[[Conversation], Any], talk: Conversation, call: Any) -> str:
    try:
        async with asyncio.timeout(2 * LONGEST):
            await act(talk)
    except (grpc.aio.AioRpcError, ConnectionError, asyncio.InvalidStateError):
        return str((await call.code()).name)
    except TimeoutError:
        return "no answer"
    return "answered"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = ["headers", "tcp", "tls", "operators", "sessions"]
    parser.add_argument("kinds", nargs="*", default=kinds)
    parser.add_argument("--sessions", type=int, default=2000)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--megabytes", type=int, default=80)
    parser.add_argument("--nginx", action="store_true")
    chosen = parser.parse_args()
    if unknown := set(chosen.kinds) - set(kinds):
        parser.error(f"unknown attacks: {', '.join(sorted(unknown))}. Choose from {', '.join(kinds)}.")
    clients = chosen.sessions if "sessions" in chosen.kinds else PROBES
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        with serving(Path(name), clients, chosen.nginx) as service:
            service.join(0)
            port, most = service.port, chosen.megabytes * 1_000_000
            attacks: dict[str, Callable[[], None]] = {
                "headers": lambda: attack(service, "headers", flood_headers, port, 16, most, 20.0),
                "tcp": lambda: attack(service, "tcp", hold_connections, port, False, chosen.connections, 4, 30.0),
                "tls": lambda: attack(service, "tls", hold_connections, port, True, chosen.connections, 4, 60.0),
                "operators": lambda: attack(service, "operators", hold_connections, service.admin, False, 160, 4, 10.0),
                "sessions": lambda: asyncio.run(all_at_once(service, chosen.sessions)),
            }
            for kind in chosen.kinds:
                attacks[kind]()


if __name__ == "__main__":
    main()
