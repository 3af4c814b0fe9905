"""Does a service last? One server, as ``polytempo serve`` runs it (mTLS, tokens, a listener for operators, clipping and
robust mixing), under clients that join, leave, crash, come back and send rubbish, some of them compressed; strangers
that hold connections open; and an operator who looks, reloads, backs up and restores, and revokes clients, who enrol
anew. It is killed with SIGKILL every few minutes and started again; every fourth time it is asked to stop with SIGTERM
instead.

    python benchmarks/service/soak.py [--seconds 3600] [--clients 200] [--kill-every 180] [--strategy fedasync]
        [--rate 30] [--no-robust] [--parameters 20000] [--out results/soak] [--seed 0]

What is checked after every kill and at the end: each acknowledged update is in the journal exactly once; the state that
a replay comes to is, bit for bit, the one that the running server wrote down; what the state counts for each client is
what the journal says. What is measured every minute: memory of the server, size of the journal's directory, p50 and p99
of an exchange (an update in, the next task out). OUT gets soak.json, soak.svg and soak.png. Exits with 1 if a promise
is broken; then the service's directory is kept.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

from safetensors.numpy import save_file
from serving_faults import free_port
from serving_load import model_tensors
from soak_account import Account, Checked, broken_bounds, check, draw, linked_copy, print_table, summary
from soak_clients import Plan, run_clients
from soak_operator import Operator

from polytempo.serve.access.certs import make_client_certificate
from polytempo_client.streams import stream

PATIENCE = 30.0
SETTINGS = f'patience = {PATIENCE}\n[log]\nfile = "service.log"\nbytes = 4_194_304\nkept = 3\n'
DRAIN_EVERY = 4
"""Every so many stops are a SIGTERM."""
LOOK_EVERY = 2.0
"""Seconds between looks at the journal and the server's memory."""
TIME_LIMIT = 120.0
"""Seconds that the server may take to start or to stop."""


class BrokenError(Exception):
    """The service did not go on."""


class Server:
    """One life of ``polytempo serve``."""

    def __init__(self, command: list[str], errors: Path) -> None:
        self.listening = threading.Event()
        with errors.open("ab") as file:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True)
        self._hear = threading.Thread(target=self._wait_for_its_line, daemon=True)
        self._hear.start()

    def _wait_for_its_line(self) -> None:
        assert self.process.stdout is not None
        if self.process.stdout.readline():
            self.listening.set()
        self.process.stdout.read()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(TIME_LIMIT)


# The hour.


class Soak:
    def __init__(self, directory: Path, chosen: argparse.Namespace) -> None:
        self.directory, self.chosen = directory, chosen
        polytempo = [sys.executable, "-c", "from polytempo.cli.main import main; main()"]
        subprocess.run([*polytempo, "certs", directory], check=True, stdout=subprocess.DEVNULL)
        for words in (["--clients", str(chosen.clients)], ["--operator", "anna", "--role", "admin"]):
            subprocess.run([*polytempo, "tokens", directory, *words], check=True, stdout=subprocess.DEVNULL)
        for client in range(chosen.clients):
            make_client_certificate(directory, client)
        (directory / "service.toml").write_text(SETTINGS)
        init = directory / "init.safetensors"
        save_file(model_tensors(chosen.parameters), init)
        port = free_port()
        admin = free_port(port + 1)
        self._command = [*polytempo, "serve", chosen.strategy, "--dir", str(directory), "--init", str(init), "--mtls"]
        self._command += ["--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}", "--steps", "1"]
        self._command += ["--clip", "3", "--robust", "median:10"] if chosen.robust else []
        context = multiprocessing.get_context("spawn")
        self._checker = ProcessPoolExecutor(1, context, initializer=os.nice, initargs=(19,))
        self._checks: list[tuple[Future[Checked], set[tuple[int, int]]]] = []
        self._clients, there = context.Pipe()
        plan = self.plan = Plan(directory, port, chosen.clients, chosen.rate, chosen.parameters, PATIENCE, chosen.seed)
        honest = range(sum(map(plan.is_rogue, range(chosen.clients))), chosen.clients)
        self._operator = Operator(directory, admin, honest, chosen.seed)
        self._process = context.Process(target=run_clients, args=(there, plan), daemon=True)
        self._there = there

    def run(self) -> Account:
        self._server = self._start()
        if not self._server.listening.wait(TIME_LIMIT):
            raise SystemExit(f"The server does not start: see {self.directory / 'stderr.log'}.")
        account = self.account = Account(time.time())
        self._process.start()
        self._there.close()
        self._operator.start()
        random = stream(self.chosen.seed, "soak-kills")
        try:
            while (now := time.time() - account.began) < self.chosen.seconds:
                stop = min(now + self.chosen.kill_every * random.uniform(0.8, 1.2), self.chosen.seconds)
                self._watch(account.began + stop)
                if stop < self.chosen.seconds:
                    self._stop_and_start()
            self._finish()
        except BrokenError as error:
            account.wrong.append(str(error))
        finally:
            self._server.process.kill()
            self._process.kill()
            self._checker.shutdown(cancel_futures=True)
        return account

    def _start(self) -> Server:
        return Server(self._command, self.directory / "stderr.log")

    def _watch(self, until: float) -> None:
        while time.time() < until:
            self._receive(LOOK_EVERY)
            self.account.look(self.directory, self._server.process.pid)
            if (status := self._server.process.poll()) is not None:
                raise BrokenError(f"the server ended by itself with {status}: see {self.directory / 'stderr.log'}.")

    def _receive(self, seconds: float) -> bool:
        """What the clients tell, for so long; whether they are at their end."""
        ends = time.monotonic() + seconds
        while self._clients.poll(max(ends - time.monotonic(), 0.0)):
            try:
                told = self._clients.recv()
            except EOFError:
                raise BrokenError("the clients' process has ended by itself.") from None
            if told is None:
                return True
            self.account.add(told)
        self._take_checks()
        return False

    def _take_checks(self) -> None:
        while self._checks and self._checks[0][0].done():
            future, acknowledged = self._checks.pop(0)
            self.account.compare(future.result(), acknowledged)

    def _stop_and_start(self) -> None:
        account = self.account
        kind = "drain" if len(account.stops) % DRAIN_EVERY == DRAIN_EVERY - 1 else "kill"
        began = time.time()
        status = self._server.end(signal.SIGTERM if kind == "drain" else signal.SIGKILL)
        ended = time.time()
        if kind == "drain" and status != 0:
            account.wrong.append(f"a server that was asked to stop ended with {status}")
        account.look(self.directory)
        self._check_a_copy(f"copy-{len(account.stops)}")
        self._server = self._start()
        while not self._server.listening.is_set():
            self._receive(0.1)
            if self._server.process.poll() is not None or time.time() > ended + TIME_LIMIT:
                raise BrokenError(f"the server does not start again: see {self.directory / 'stderr.log'}.")
        up = time.time()
        account.stops.append({"kind": kind, "at": began - account.began, "stopping": ended - began, "down": up - began})

    def _check_a_copy(self, name: str) -> None:
        copy = linked_copy(self.directory / "journal", self.directory / name)
        self._checks.append((self._checker.submit(check, copy, self.chosen.strategy), set(self.account.acknowledged)))

    def _finish(self) -> None:
        """Everybody gets the answer that they wait for; then the server stops, and all is compared."""
        account = self.account
        self._operator.stop()
        account.counts += self._operator.counts
        account.wrong += self._operator.wrong
        self._clients.send("stop")
        while not self._receive(LOOK_EVERY):
            account.look(self.directory, self._server.process.pid)
        status = self._server.end(signal.SIGTERM)
        account.wrong += [] if status == 0 else [f"the last server ended with {status}"]
        account.look(self.directory)
        self._check_a_copy("copy-last")
        for future, _ in self._checks:
            future.result()
        self._take_checks()
        unknown = set(account.applied.values()) - account.begun
        account.wrong += [f"client {c} never pushed task {t}, which is in the journal" for c, t in unknown]
        account.wrong += [
            f"client {c}, task {t}: acknowledged twice" for (c, t), n in account.acknowledged.items() if n > 1
        ]


def quarantined(directory: Path) -> list[int]:
    return sorted(map(int, json.loads((directory / "access.json").read_text()).get("quarantined", {})))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--kill-every", type=float, default=180.0)
    parser.add_argument("--strategy", default="fedasync")
    parser.add_argument("--robust", action=argparse.BooleanOptionalAction, default=True, help="clip and mix updates")
    parser.add_argument("--rate", type=float, default=30.0, help="updates per second, of all clients")
    parser.add_argument("--parameters", type=int, default=20_000, help="numbers in the model")
    parser.add_argument("--out", type=Path, default=Path("results/soak"))
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="polytempo-soak-"))
    soak = Soak(directory, chosen)
    account = soak.run()
    in_quarantine = quarantined(directory)
    figures = summary(account, in_quarantine)
    wrong = account.wrong + broken_bounds(account)
    honest = [client for client in in_quarantine if not soak.plan.is_rogue(client)]
    wrong += [f"client {client} is in quarantine and sent no rubbish" for client in honest]
    record = {
        "settings": {name: str(value) for name, value in vars(chosen).items()},
        "figures": figures,
        "minutes": [minute.row() for minute in account.minutes],
        "stops": account.stops,
        "counts": dict(sorted(account.counts.items())),
        "quarantined": in_quarantine,
        "wrong": wrong,
    }
    (chosen.out / "soak.json").write_text(json.dumps(record, indent=1))
    draw(account, chosen.out)
    print_table(account, figures)
    if wrong:
        print(f"{len(wrong)} broken promises:", *wrong[:20], f"The service is kept in {directory}.", sep="\n")
        sys.exit(1)
    print("Verdict: every promise was kept.")
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
