"""How long does a service pause when its leader fails, and does it keep what it promises? Two servers, as ``polytempo
serve`` runs them, share a PostgreSQL database on this machine's disk, each over a proxy that can be cut. Clients of
the package's own hand in updates all the while. At random instants the leader fails in one of four ways:

    kill        SIGKILL; the server is started again
    stop        SIGSTOP, and SIGCONT after 5 to 15 seconds
    cut         nothing goes between the leader and its database for 30 seconds, and nobody is told
    hand-over   ``polytempo hand-over``

    python benchmarks/service/failover.py [--clients 8 50 200] [--failovers 34] [--causes kill stop cut hand-over]
        [--lease 2] [--rate 30] [--parameters 1000] [--out docs/results/failovers.jsonl] [--seed 0]
    python benchmarks/service/failover.py --table

The pause ends with the first acknowledgement of the new leader. It begins with the failure; of a stop and a cut with
the last renewal of the lease, because a failure comes somewhere between two of them.

What is checked after every failover: each acknowledged update is in the journal exactly once, written in an epoch of
the server that acknowledged it, or in an earlier one; each epoch has one holder; no standby came to another state than
the leader. At the end of each number of clients: a replay comes to the digest of the state that the last leader wrote.
OUT gets a line for each failover. What it has already is not measured again. Exits with 1 if a promise is broken.
"""

import argparse
import json
import multiprocessing
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from failover_clients import Acknowledged, run_clients
from failover_servers import TIME_LIMIT, WITNESS, Member
from safetensors.numpy import save_file
from serving_load import model_tensors

from polytempo.core.state import digest
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal.journal import Journal
from polytempo.serve.journal.replay import replay
from polytempo.serve.paths import OPERATIONS
from polytempo.serve.process.backup import put_document
from polytempo.serve.process.handing_over import hand_over
from polytempo.serve.storage.address import note_database

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.postgres import Server

CAUSES = ("kill", "stop", "cut", "hand-over")
FROM_RENEWAL = ("stop", "cut")
CUT_SECONDS = 30.0
NEARLY = 50
"""Events that a standby may be behind and count as ready: it tells once a second."""


class BrokenError(Exception):
    """The service did not go on."""


class Service:
    """Both servers, their database, and the clients of one number."""

    def __init__(self, folder: Path, stack: ExitStack, clients: int, chosen: argparse.Namespace) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.wrong: list[str] = []
        self._holders: dict[str, str] = {}
        """Which address a holder of the lease has."""
        (folder / "database").mkdir()
        self.database = Server(folder / "database")
        stack.callback(self.database.stop)
        init = folder / "init.safetensors"
        save_file(model_tensors(chosen.parameters), init)
        words = ["fedasync", "--insecure", "--init", str(init), "--steps", "1"]
        first = folder / "a"
        note_database(first, self.database.url("service"))
        tokens = make_tokens(first, clients)
        put_document(first, OPERATIONS, f"[failover]\nlease_seconds = {chosen.lease}\n".encode())
        self.lease_seconds = chosen.lease
        self.members = [self._member(stack, first, words)]
        self.wait_until(lambda: bool(self.lease()["holder"]), "the first server leads")
        self.query(WITNESS)
        self.members.append(self._member(stack, folder / "b", words, self.members[0].port))
        here, there = multiprocessing.get_context("spawn").Pipe()
        addresses = [member.address for member in self.members]
        self._clients = multiprocessing.get_context("spawn").Process(
            target=run_clients, args=(there, tokens, addresses, chosen.rate), daemon=True
        )
        self._here = here
        self._clients.start()
        there.close()
        stack.callback(self._clients.kill)

    def _member(self, stack: ExitStack, directory: Path, words: Sequence[str], *after: int) -> Member:
        member = Member(directory, self.database, words, *after)
        stack.callback(lambda: member.process.kill())
        stack.callback(member.proxy.close)
        return member

    # What is there.

    def query(self, sql: str) -> list[Any]:
        return self.database.execute(f"SET search_path TO service; {sql}")

    def lease(self) -> dict[str, Any]:
        names = ("epoch", "holder", "last", "confirmed", "extract(epoch FROM expires)::float8")
        ((epoch, holder, last, confirmed, expires),) = self.query(f"SELECT {', '.join(names)} FROM lease")
        for member in self.members if holder else ():
            if member.leads(holder):
                self._holders[holder] = member.address
        return {"epoch": epoch, "holder": holder, "last": last, "confirmed": confirmed, "expires": expires}

    def leader(self) -> Member:
        holder = self.lease()["holder"]
        return next(member for member in self.members if member.leads(holder))

    def is_ready(self) -> bool:
        """One leads, and the other one could."""
        lease = self.lease()
        told = {name: json.loads(words) for name, words in self.query("SELECT name, told FROM servers")}
        mine = {name: one for name, one in told.items() if any(member.leads(name) for member in self.members)}
        self._check_digests(told)
        standbys = [one for one in mine.values() if one["role"] == "standby" and one["follows"] and not one["problem"]]
        return len(mine) == 2 and len(standbys) == 1 and standbys[0]["event"] >= lease["confirmed"] - NEARLY

    def _check_digests(self, told: dict[str, dict[str, Any]]) -> None:
        for name, one in told.items():
            words = f"{name} came to another state at event {one['differed_at']}"
            if one["differed_at"] is not None and words not in self.wrong:
                self.wrong.append(words)

    def receive(self, seconds: float = 0.02) -> None:
        """What the clients tell, for so long."""
        ends = time.monotonic() + seconds
        while self._here.poll(max(ends - time.monotonic(), 0.0)):
            for one in self._here.recv() or ():
                if isinstance(one, str):
                    self.wrong.append(one)
                else:
                    self.acknowledged.append(one)

    def wait_until(self, true: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + TIME_LIMIT
        while not true():
            for member in self.members if hasattr(self, "members") else ():
                if member.process.poll() is not None:
                    raise BrokenError(f"{member.directory.name} ended with {member.process.returncode}, until {what}")
            if time.monotonic() > ends:
                raise BrokenError(f"not within {TIME_LIMIT:g} s: {what}")
            if hasattr(self, "_here"):
                self.receive()
            else:
                time.sleep(0.02)

    # Failures.

    def fail_over(self, cause: str) -> dict[str, float]:
        """Let the leader fail, and be good again. The seconds to the first acknowledgement of the new one."""
        leader, before = self.leader(), len(self.acknowledged)
        failed = {"kill": self._kill, "stop": self._stop, "cut": self._cut, "hand-over": self._hand_over}[cause]
        with failed(leader) as (at, renewed):

            def answered() -> list[float]:
                new = self.acknowledged[before:]
                return [one.at for one in new if one.server != leader.address and one.at > at]

            self.wait_until(lambda: bool(answered()), f"an acknowledgement after {cause}")
            seconds = answered()[0] - at
        self.wait_until(self.is_ready, f"two servers after {cause}")
        return {"seconds": answered()[0] - (renewed if cause in FROM_RENEWAL else at), "since_failure": seconds}

    def _renewed(self) -> float:
        """When the lease was renewed last, on the clock of the machine, which is the database's."""
        return float(self.lease()["expires"]) - self.lease_seconds

    @contextmanager
    def _kill(self, leader: Member) -> Iterator[tuple[float, float]]:
        at = time.time()
        leader.process.kill()
        leader.process.wait()
        renewed = self._renewed()
        leader.start()
        yield at, renewed

    @contextmanager
    def _stop(self, leader: Member) -> Iterator[tuple[float, float]]:
        at, seconds = time.time(), random.uniform(5, 15)
        leader.process.send_signal(signal.SIGSTOP)
        renewed = self._renewed()
        try:
            yield at, renewed
            while time.time() < at + seconds:
                self.receive(0.1)
        finally:
            leader.process.send_signal(signal.SIGCONT)

    @contextmanager
    def _cut(self, leader: Member) -> Iterator[tuple[float, float]]:
        at = time.time()
        leader.proxy.cut()
        renewed = self._renewed()
        try:
            yield at, renewed
            while time.time() < at + CUT_SECONDS:
                self.receive(0.1)
        finally:
            leader.proxy.mend()

    @contextmanager
    def _hand_over(self, leader: Member) -> Iterator[tuple[float, float]]:
        at, renewed = time.time(), self._renewed()
        asking = threading.Thread(target=hand_over, args=(self.members[0].directory,), daemon=True)
        asking.start()
        yield at, renewed
        asking.join()

    # Promises.

    def check(self) -> None:
        """Of all that was acknowledged so far."""
        written: dict[tuple[int, int], list[int]] = {}
        for epoch, client, task in self.query("SELECT epoch, client, task FROM witness.arrivals"):
            written.setdefault((client, task), []).append(epoch)
        leads = self.query("SELECT epoch, holder FROM witness.leads ORDER BY epoch")
        twice = [epoch for epoch, count in Counter(epoch for epoch, _ in leads).items() if count > 1]
        self.wrong += [f"epoch {epoch} was held twice" for epoch in twice]
        epochs: dict[str, list[int]] = {}
        for epoch, holder in leads:
            epochs.setdefault(self._holders.get(holder, holder), []).append(epoch)
        self.wrong += [f"{name} was written {len(found)} times" for name, found in written.items() if len(found) > 1]
        for one in self.acknowledged:
            found = written.get((one.client, one.task), [])
            if len(found) != 1:
                self.wrong.append(f"{one} is {len(found)} times in the journal")
            elif max(epochs.get(one.server, [-1])) < found[0]:
                self.wrong.append(f"{one} was written in epoch {found[0]}, which another server held")
        repeats = [name for name, n in Counter((one.client, one.task) for one in self.acknowledged).items() if n > 1]
        self.wrong += [f"{name} was acknowledged twice" for name in repeats]

    def finish(self) -> None:
        """Everybody gets the answer that they wait for. Then both stop, and all is compared."""
        self._here.send("stop")
        while self._clients.is_alive() or self._here.poll():
            try:
                self.receive(0.1)
            except (EOFError, ConnectionResetError):
                break
        leader = self.leader()
        for member in sorted(self.members, key=lambda one: one is leader):
            status = member.end()
            self.wrong += [] if status == 0 else [f"{member.directory.name} ended with {status}"]
        self.check()
        journal = self.members[0].directory / "journal"
        self.members[0].proxy.mend()
        with closing(Journal(journal)) as found:
            last, written = found.snapshots()[-1], digest(found.load_snapshot(found.snapshots()[-1]))
        replayed = replay(journal, last).figures()["digest"]
        if replayed != written:
            self.wrong.append(f"a replay comes to {replayed}, and the leader wrote {written}")


def measure(clients: int, causes: Sequence[str], chosen: argparse.Namespace) -> bool:
    """The failovers of one number of clients. Were all promises kept?"""
    random.seed(f"{chosen.seed} {clients} {time.time_ns()}")
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="polytempo-failover-", dir=chosen.work))
        folder.chmod(0o755)
        print(f"{clients} clients in {folder}", flush=True)
        service = Service(folder, stack, clients, chosen)
        rows = []
        try:
            service.wait_until(
                lambda: service.is_ready() and len(service.acknowledged) >= clients, "everybody is there"
            )
            for cause in causes:
                service.receive(random.uniform(1, 4))
                rows.append({"clients": clients, "cause": cause, "lease": chosen.lease, **service.fail_over(cause)})
                service.check()
                rows[-1] |= {"updates": len(service.acknowledged), "wrong": len(service.wrong)}
                print(json.dumps(rows[-1]), flush=True)
                with chosen.out.open("a") as out:
                    out.write(json.dumps(rows[-1]) + "\n")
                if service.wrong:
                    break
            service.finish()
        except BrokenError as error:
            service.wrong.append(str(error))
        print(f"{len(service.acknowledged)} updates acknowledged, {len(service.wrong)} broken promises", flush=True)
        print(*service.wrong[:20], sep="\n", flush=True)
        return not service.wrong


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| clients | cause | failovers | median s | longest s | broken promises |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    groups = [(str(n), [row for row in rows if row["clients"] == n]) for n in sorted({row["clients"] for row in rows})]
    for clients, of_group in [*groups, ("all", rows)]:
        for cause in CAUSES:
            of_cause = [row for row in of_group if row["cause"] == cause]
            if of_cause:
                seconds = [row["seconds"] for row in of_cause]
                wrong = sum(row["wrong"] for row in of_cause)
                lines.append(
                    f"| {clients} | {cause} | {len(seconds)} | {statistics.median(seconds):.2f} | {max(seconds):.2f} | "
                    f"{wrong} |"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 50, 200])
    parser.add_argument("--failovers", type=int, default=34, help="of each number of clients")
    parser.add_argument("--causes", nargs="+", choices=CAUSES, default=list(CAUSES))
    parser.add_argument("--lease", type=float, default=2.0)
    parser.add_argument("--rate", type=float, default=30.0, help="updates per second, of all clients")
    parser.add_argument("--parameters", type=int, default=1000, help="numbers in the model")
    parser.add_argument("--out", type=Path, default=Path("docs/results/failovers.jsonl"))
    parser.add_argument("--work", type=Path, help="where the servers and their database lie (default: a new folder)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true", help="print what OUT has")
    chosen = parser.parse_args()
    rows = read(chosen.out)
    if chosen.table:
        print(table(rows))
        return
    kept = True
    for clients in chosen.clients:
        done = Counter(row["cause"] for row in rows if row["clients"] == clients)
        wanted = Counter(chosen.causes[i % len(chosen.causes)] for i in range(chosen.failovers))
        causes = list((wanted - done).elements())
        random.Random(chosen.seed).shuffle(causes)
        if causes:
            kept = measure(clients, causes, chosen) and kept
    print(table(read(chosen.out)))
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
