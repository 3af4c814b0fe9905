"""Is anything lost or done twice when a server dies? Clients push as fast as they can while their server is killed with
SIGKILL again and again: while it starts, recovers, writes, takes a snapshot. After every kill the journal has to hold
each acknowledged update exactly once and nothing twice, and the next server has to come back to the state that a replay
of a copy of the journal, from its oldest snapshot, ends in. (A killed process is not a power cut: what the kernel has
taken is not lost here, whether it was synced or not.)

    python benchmarks/service/serving_faults.py [--kills 100] [--clients 8] [--strategy fedasync]
        [--parameters 1000] [--seed 0]

``--strategy benchmarks/service/serving_faults.py:Ticking`` adds timers that are due all the time. Small updates lie
in the journal's database; with ``--parameters 20000`` they go to files beside it. Exits with 1 if anything is wrong.
"""

import argparse
import asyncio
import multiprocessing
import shutil
import socket
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from polytempo.core.events import Update
from polytempo.core.orders import Order, SetTimer
from polytempo.serve.access.live import Access
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal import snapshots, store
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.replay import replay
from polytempo.serve.journal.settings import make_settings
from polytempo.serve.paths import DATABASE
from polytempo.serve.process.running import lead_until
from polytempo.serve.server.host import Host
from polytempo.serve.server.network.outbox import Outbox
from polytempo.serve.server.network.sessions import Server
from polytempo.serve.server.operations import Limits, Operations
from polytempo.serve.server.shared import Shared
from polytempo.strategies import Strategy
from polytempo_client.client import Client
from polytempo_client.logs import log_to
from polytempo_client.session import search
from polytempo_client.session.credentials import read_token
from polytempo_client.streams import stream

SNAPSHOT_EVENTS = 40
"""So few that a good part of the time goes into snapshots."""
SEGMENT_BYTES = 1 << 20
"""So few that a file of updates is often full."""
FIRST_KILLS = 5
"""Kills while the very first server starts, before there is a journal, ..."""
SHARE_WHILE_STARTING = 0.3
"""... and later the share of kills that come before the server listens."""
LATEST = 1.0
"""Seconds that the others may listen, at most."""
TIME_LIMIT = 60.0
"""Seconds after which a server that does not listen, or clients that get no answer, count as hanging."""

# A task handed in is a row of the journal until a snapshot lets it go: keep its number for the final account.
KEEP_PRUNED = """
CREATE TABLE IF NOT EXISTS pruned (number INTEGER PRIMARY KEY, client INTEGER, task INTEGER);
CREATE TRIGGER IF NOT EXISTS keep_pruned BEFORE DELETE ON events WHEN old.kind = 'updated' AND old.void IS NULL
BEGIN INSERT INTO pruned VALUES (old.number, old.client, json_extract(old.detail, '$.task')); END;
"""
APPLIED = """
SELECT number, client, task FROM pruned UNION ALL
SELECT number, client, json_extract(detail, '$.task') FROM events WHERE kind = 'updated' AND void IS NULL
ORDER BY number
"""


class Ticking(Strategy):
    """Mixes updates in, and shrinks the model a little every 5 ms."""

    def joined(self, client: int, now: float) -> Iterator[Order]:
        if not self.participation.members:
            yield SetTimer(now, "tick")
        self.participation.join(client)

    def updated(self, update: Update, now: float) -> None:
        self.model.mix(update.weights, 0.5)

    def fired(self, key: str, now: float) -> Iterator[Order]:
        self.model.mix(0.99 * self.model.weights, 1.0)
        yield SetTimer(now + 0.005, key)


# The server, in a process of its own.


def serve(tell: Connection, directory: Path, strategy: str, port: int) -> None:
    """Recover, tell the digest and the seconds that it took, listen, tell that, and serve for ever."""
    snapshots.SNAPSHOT_EVENTS, store.SEGMENT_BYTES = SNAPSHOT_EVENTS, SEGMENT_BYTES
    log_to(level="error")

    async def run() -> None:
        settings = make_settings(strategy=strategy, init=directory / "init.safetensors", steps=1)
        began = time.perf_counter()
        opened = open_service(directory / "journal", settings)
        tell.send((opened.service.digest(), time.perf_counter() - began))
        with closing(sqlite3.connect(directory / "journal" / DATABASE)) as database:
            database.executescript(KEEP_PRUNED)
        unhurried = Operations(limits=Limits(requests_per_second=1e9))
        shared = Shared(unhurried, Access(directory), Outbox(asyncio.get_running_loop().call_soon_threadsafe))
        host = Host(opened, shared)
        server = Server(host.submit, opened.service.schema, shared)
        server.listen(f"127.0.0.1:{port}", None)
        tell.send("listening")
        await lead_until(asyncio.Event(), host, server, shared)

    asyncio.run(run())


class ServerProcess:
    """One life of the server. The processes are forked from a parent that has imported everything."""

    def __init__(self, directory: Path, strategy: str, port: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(
            ["polytempo.serve.process.running", "polytempo_client.client", "polytempo.serve.journal.replay"]
        )
        self._pipe, tell = context.Pipe(duplex=False)
        self._process = context.Process(target=serve, args=(tell, directory, strategy, port), daemon=True)
        self._process.start()
        tell.close()
        self.messages: list[object] = []

    def wait_until_it_listens(self) -> None:
        while "listening" not in self.messages:
            if not self._pipe.poll(TIME_LIMIT):
                raise TimeoutError(f"the server does not listen within {TIME_LIMIT:.0f} s")
            self.messages.append(self._pipe.recv())

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        try:
            while True:
                self.messages.append(self._pipe.recv())
        except EOFError:
            self._pipe.close()

    @property
    def recovered(self) -> tuple[str, float] | None:
        """Digest and seconds; None if it was killed before."""
        return next((message for message in self.messages if isinstance(message, tuple)), None)


# The load: clients in threads of this process.


class Pusher:
    """A client that pushes without end. It goes on with the next task only when the last was acknowledged."""

    def __init__(self, directory: Path, number: int, port: int) -> None:
        self.begun: list[int] = []
        """Numbers of the tasks that it pushed, ..."""
        self.acknowledged = 0
        """... of which so many came back."""
        self.error: BaseException | None = None
        self.stopping = False
        self.client = Client(f"127.0.0.1:{port}", read_token(directory / f"client-{number}.token"), insecure=True)
        self._target = np.float32(number)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self.stopping:
                task = self.client.task()
                self.begun.append(task.number)
                tensors = {
                    name: array + np.float32(0.01) * (self._target - array) for name, array in task.tensors.items()
                }
                self.client.push(task, tensors, samples=1)
                self.acknowledged += 1
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        """Stop after the push that is under way."""
        self.stopping = True
        self._thread.join(TIME_LIMIT)
        if self._thread.is_alive():
            self.error = TimeoutError(f"no answer within {TIME_LIMIT:.0f} s")
        self.client.close()


# What the journal says after a kill.


@dataclass
class Found:
    """A copy of the journal, looked into."""

    digest: str | None = None
    """Of the replayed state; None if no journal had begun."""
    applied: dict[int, list[int]] = field(default_factory=dict)
    """Each client's tasks in the journal, pruned ones included."""
    counted: dict[int, tuple[int, int]] = field(default_factory=dict)
    """What the replayed state says of each client: updates, and the last task."""
    half_snapshot: bool = False
    half_update: bool = False


def look_into(directory: Path, strategy: str) -> Found:
    copy = directory / "copy"
    shutil.copytree(directory / "journal", copy)
    try:
        return _read(copy, strategy) if store.Journal.exists(copy) else Found()
    finally:
        shutil.rmtree(copy)


def _read(copy: Path, strategy: str) -> Found:
    replayed = replay(copy, allowed=[strategy])
    found = Found(replayed.service.digest())
    found.counted = {client: (m.updates, m.answered) for client, m in replayed.service.members.items() if m.updates}
    with closing(sqlite3.connect(copy / DATABASE)) as database:
        if database.execute("SELECT 1 FROM sqlite_master WHERE name = 'pruned'").fetchone():
            for _, client, task in database.execute(APPLIED):
                found.applied.setdefault(client, []).append(task)
        kept = {number for (number,) in database.execute("SELECT number FROM snapshots")}
        ends = dict(database.execute("SELECT segment, max(begins + size) FROM events WHERE size > 0 GROUP BY segment"))
    files = {int(path.stem.removeprefix("snapshot-")) for path in copy.glob("snapshot-*.safetensors")}
    found.half_snapshot = files != kept or any(copy.glob(".snapshot-*"))
    segment = max(copy.glob("updates-*.bodies"))
    found.half_update = segment.stat().st_size > ends.get(int(segment.stem.removeprefix("updates-")), 0)
    return found


@dataclass
class Account:
    """What went wrong and what did not, over all kills."""

    kills: Counter[str] = field(default_factory=Counter)
    half_done: Counter[str] = field(default_factory=Counter)
    recoveries: list[float] = field(default_factory=list)
    digests: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: set[tuple[int, int]] = field(default_factory=set)
    doubled: set[tuple[int, int]] = field(default_factory=set)

    def add(self, before: Found, server: ServerProcess, after: Found, pushers: list[Pusher]) -> None:
        """One server's life, between two looks into its journal."""
        kill = sum(self.kills.values())
        self.half_done.update(name for name in ("half_snapshot", "half_update") if getattr(after, name))
        if server.recovered is not None:
            digest, seconds = server.recovered
            self.recoveries.append(seconds)
            self._compare(before.digest, digest, f"server {kill} recovered to another state than a replay")
        else:
            self._compare(before.digest, after.digest, f"server {kill} was killed in recovery and changed the state")
        for client, pusher in enumerate(pushers):
            self._compare_updates(kill, client, pusher, after)

    def _compare(self, expected: str | None, found: str | None, what: str) -> None:
        if expected is None:  # there was no journal yet
            return
        self.digests += 1
        if expected != found:
            self.wrong.append(f"{what}: {expected} and {found}")

    def _compare_updates(self, kill: int, client: int, pusher: Pusher, found: Found) -> None:
        acknowledged = pusher.acknowledged  # before `begun`: an answer may still be on its way through the kernel
        begun, applied = list(pusher.begun), found.applied.get(client, [])
        self.lost |= {(client, task) for task in set(begun[:acknowledged]) - set(applied)}
        self.doubled |= {(client, task) for task, times in Counter(applied).items() if times > 1}
        if applied != begun[: len(applied)] or not acknowledged <= len(applied) <= acknowledged + 1:
            self.wrong.append(
                f"after kill {kill} client {client} has {acknowledged} acknowledged updates, "
                f"the journal {len(applied)}; the client's last tasks are {begun[-3:]}, the journal's {applied[-3:]}"
            )
        if found.counted.get(client, (0, 0)) != (len(applied), applied[-1] if applied else 0):
            self.wrong.append(f"after kill {kill} the state counts {found.counted.get(client)} for client {client}")


# All of it.


def free_port(begin: int = 27_000) -> int:
    """Below those that the kernel gives to outgoing connections: nobody takes it while the server is dead."""
    for port in range(begin, 28_000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
    raise OSError("no free port between 27000 and 28000")


def kill_and_restart(
    directory: Path, kills: int, clients: int, strategy: str, parameters: int, seed: int
) -> tuple[Account, list[Pusher]]:
    make_tokens(directory, clients)
    weights = stream(seed, "faults-model").normal(size=parameters).astype(np.float32)
    save_file({"weight": weights[10:], "bias": weights[:10]}, directory / "init.safetensors")
    (directory / "journal").mkdir()
    random, port, account = stream(seed, "kills"), free_port(), Account()
    starting = [0.3]
    pushers = [Pusher(directory, client, port) for client in range(clients)]
    found = Found()
    try:
        for kill in range(kills + 1):
            server = ServerProcess(directory, strategy, port)
            began = time.perf_counter()
            if kill < FIRST_KILLS or (kill < kills and random.random() < SHARE_WHILE_STARTING):
                time.sleep(random.uniform(0.0, statistics.median(starting)))
                kind = "while starting"
            else:
                server.wait_until_it_listens()
                starting.append(time.perf_counter() - began)
                time.sleep(LATEST * random.random() ** 2)  # often at once
                kind = "under load"
            if kill == kills:  # the last server is not killed before everybody has an answer
                for pusher in pushers:
                    pusher.finish()
                kind = "at the end"
            server.kill()
            account.kills[kind] += 1
            before, found = found, look_into(directory, strategy)
            account.add(before, server, found, pushers)
    finally:
        for pusher in pushers:
            pusher.stopping = True
            pusher.client.close()
    for client, pusher in enumerate(pushers):
        if pusher.error is not None:
            account.wrong.append(f"client {client} stopped: {pusher.error!r}")
        if len(found.applied.get(client, [])) != pusher.acknowledged:
            account.wrong.append(f"at the end client {client} and the journal count differently")
    return account, pushers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--strategy", default="fedasync")
    parser.add_argument("--parameters", type=int, default=1000, help="numbers in the model")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    # The clients share this process and come back at once: the next server has to be under load when it is killed.
    search.FIRST_PAUSE = search.LONGEST_PAUSE = 0.1
    log_to(level="error")
    directory = Path(tempfile.mkdtemp(prefix="polytempo-faults-"))
    began = time.perf_counter()
    account, pushers = kill_and_restart(
        directory, chosen.kills, chosen.clients, chosen.strategy, chosen.parameters, chosen.seed
    )
    acknowledged = sum(pusher.acknowledged for pusher in pushers)
    rows = [
        ("kills under load", account.kills["under load"]),
        ("kills while starting", account.kills["while starting"]),
        ("kills that left half a snapshot", account.half_done["half_snapshot"]),
        ("kills that left half an update", account.half_done["half_update"]),
        ("updates acknowledged", acknowledged),
        ("acknowledged and lost", len(account.lost)),
        ("applied twice", len(account.doubled)),
        ("digests compared", account.digests),
        ("median recovery, ms", f"{1e3 * statistics.median(account.recoveries):.0f}"),
        ("longest recovery, ms", f"{1e3 * max(account.recoveries):.0f}"),
        ("seconds in all", f"{time.perf_counter() - began:.0f}"),
        ("other faults", len(account.wrong)),
    ]
    print(f"{chosen.strategy}, {chosen.clients} clients, {chosen.parameters:,} parameters, seed {chosen.seed}")
    for name, value in rows:
        print(f"{name:<34}{value:>10}")
    if account.wrong or account.lost or account.doubled:
        print(*account.wrong[:20], f"The journal is kept in {directory}.", sep="\n", file=sys.stderr)
        sys.exit(1)
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
