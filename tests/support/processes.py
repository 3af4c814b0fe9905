"""A server and its clients in processes of their own, as the command line starts them."""

import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from polytempo.cli import main as cli
from polytempo.serve.journal.journal import Journal
from support.serving import free_port

CLIENTS = 8
DATA: dict[str, Any] = {"partition": "iid", "clients": CLIENTS}
TIME_LIMIT = 120.0
"""Seconds that anything may take before it counts as hanging."""


class Processes:
    """The server and its clients, one life after the other; each life has a log of its own. To import the command line
    takes longer than all they do, so they are forked from a process that has imported it."""

    def __init__(self, directory: Path, strategy: str) -> None:
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self._strategy = strategy
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["polytempo.cli.main"])
        self._started: list[BaseProcess] = []

    def serve(self, *options: object) -> BaseProcess:
        """A server that listens."""
        server = self.begin_to_serve(*options)
        self.wait_until(lambda: f"{self._strategy} on {self.address} (TLS)" in self.last_log())
        return server

    def begin_to_serve(self, *options: object) -> BaseProcess:
        """A server that may come to listen."""
        where = ("--dir", self.directory, "--listen", self.address, "--epochs", 5)
        return self._start("server", "serve", self._strategy, *where, *options)

    def last_log(self) -> str:
        """What the process that was started last has said."""
        return "".join(log.read_text() for log in self.directory.glob(f"*.{len(self._started)}.log"))

    def join(self, client: int) -> BaseProcess:
        access = ("--ca", self.directory / "ca.pem", "--token", self.directory / f"client-{client}.token")
        data = ("--partition", DATA["partition"], "--clients", CLIENTS, "--engine", "eager")
        return self._start(f"client-{client}", "join", self.address, *access, *data)

    def _start(self, name: str, *arguments: object) -> BaseProcess:
        log = self.directory / f"{name}.{len(self._started) + 1}.log"
        log.touch()
        self._started.append(self._context.Process(target=command_line, args=(log, [*map(str, arguments)])))
        self._started[-1].start()
        return self._started[-1]

    def logged(self, name: str, event: str) -> list[dict[str, Any]]:
        """What this process logged in all its lives."""
        lines = [line for log in self.directory.glob(f"{name}.*.log") for line in log.read_text().splitlines(True)]
        said = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}\n")]
        return [row for row in said if row["event"] == event]

    def trained(self, client: int) -> list[int]:
        """Numbers of the tasks that a client has carried out, in order. One that was killed before the server had its
        result carries out the same task again."""
        return sorted({row["task"] for row in self.logged(f"client-{client}", "trained")})

    def wait_for_updates(self, count: int, clients: Sequence[int] = range(CLIENTS)) -> None:
        """Until each of these clients has trained so often."""
        self.wait_until(lambda: min(len(self.trained(client)) for client in clients) >= count)

    def wait_until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIME_LIMIT
        while not true():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.05)

    def end_of(self, process: BaseProcess) -> int | None:
        """Its exit code."""
        process.join(TIME_LIMIT)
        return process.exitcode

    def logs(self) -> str:
        """The last words of everybody."""
        return "\n".join(f"{log.name}: {log.read_text()[-500:]}" for log in sorted(self.directory.glob("*.log")))

    def end(self) -> None:
        for process in self._started:
            process.kill()
            process.join()


def command_line(log: Path, arguments: list[str]) -> None:
    """``polytempo ARGUMENTS`` in a process of its own; all that it says goes to the log."""
    with log.open("w", buffering=1) as sys.stdout:
        sys.stderr, sys.argv = sys.stdout, ["polytempo", *arguments]
        os.dup2(sys.stdout.fileno(), 2)  # stacks of a process that is frozen go there
        cli.main()


def tasks_in(directory: Path, client: int) -> list[int]:
    """Tasks whose updates the journal holds, in order."""
    journal = Journal(directory)
    try:
        events = [event for _, event in journal.events(journal.snapshots()[0]) if event.client == client]
        return [event.push.task for event in events if event.push is not None]
    finally:
        journal.close()
