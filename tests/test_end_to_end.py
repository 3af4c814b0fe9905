"""A real server and real clients, in processes of their own, on real data: they end where the simulator says that they
end, whatever is killed on the way."""

import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polytempo
from polytempo.cli import main as cli
from polytempo.serve.client import Client
from polytempo.serve.journal import Journal
from polytempo.serve.opening import open_service
from polytempo.serve.own_data import make_join_settings, make_local
from polytempo.serve.replay import replay
from polytempo.serve.settings import ServiceSettings
from polytempo.strategies import Strategy
from polytempo.world.data import load_dataset
from serving import free_port

CLIENTS = 8
UPDATES = 20
"""Of each client, at least. After half of them the accuracy has levelled off: the order of arrival counts little."""
KILLED = (2, 5)
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

    def serve(self) -> BaseProcess:
        """A server that listens."""
        options = ("--dir", self.directory, "--listen", self.address, "--epochs", 5)
        server = self._start("server", "serve", self._strategy, *options)
        listening = self.directory / f"server.{len(self._started)}.log"
        self._wait_until(lambda: f"{self._strategy} on {self.address} (TLS)" in listening.read_text())
        return server

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
        self._wait_until(lambda: min(len(self.trained(client)) for client in clients) >= count)

    def _wait_until(self, true: Callable[[], bool]) -> None:
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
        cli.main()


@pytest.fixture
def polytempo_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Call the command line in this process: its stdout."""

    def call(*arguments: object) -> str:
        monkeypatch.setattr("sys.argv", ["polytempo", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        assert end.value.code == 0, said.err
        return said.out

    return call


@pytest.fixture
def processes(tmp_path: Path, polytempo_command: Callable[..., str]) -> Iterator[Processes]:
    directory = tmp_path / "federation"
    polytempo_command("certs", directory)
    polytempo_command("tokens", directory, "--clients", CLIENTS)
    started = Processes(directory, "fedasync")
    yield started
    started.end()


def kill(process: BaseProcess) -> None:
    assert process.is_alive(), "it had ended before it could be killed"
    process.kill()
    process.join(TIME_LIMIT)
    assert process.exitcode is not None


def tasks_in(directory: Path, client: int) -> list[int]:
    """Tasks whose updates the journal holds, in order. It is too short to have been pruned."""
    journal = Journal(directory)
    try:
        events = [event for _, event in journal.events(0) if event.client == client]
        return [event.handed.task for event in events if event.handed is not None]
    finally:
        journal.close()


def mean_accuracy(strategy: Strategy) -> float:
    """Of the served models on the clients' own test rows, as the simulator counts."""
    dataset, settings = load_dataset("digits"), make_join_settings(**DATA, engine="eager")
    scores = []
    for client in range(CLIENTS):
        local = make_local(settings, dataset, client, 0)
        labels = local.y[torch.from_numpy(local.test)]
        scores.append(local.learner.scorer.metric(strategy.model_for(client), local.x, labels, local.test).mean())
    return float(np.mean(scores))


def test_a_federation_whose_server_and_clients_are_killed_ends_where_the_simulator_says(
    processes: Processes, polytempo_command: Callable[..., str]
) -> None:
    server = processes.serve()
    clients = [processes.join(client) for client in range(CLIENTS)]
    processes.wait_for_updates(2)
    kill(server)
    server = processes.serve()
    processes.wait_for_updates(5)
    for client in KILLED:
        kill(clients[client])
    processes.wait_for_updates(8, [client for client in range(CLIENTS) if client not in KILLED])
    kill(server)
    for client in KILLED:
        clients[client] = processes.join(client)
    server = processes.serve()
    processes.wait_for_updates(UPDATES)
    for process in clients:
        process.terminate()
    for process in clients:
        assert processes.end_of(process) == 0, processes.logs()

    with Client(processes.address, processes.directory / "client-0.token", processes.directory / "ca.pem") as onlooker:
        pulled = onlooker.pull(TIME_LIMIT)
    server.terminate()
    assert processes.end_of(server) == 0, processes.logs()

    journal = processes.directory / "journal"
    replayed = replay(journal)
    service = replayed.service
    served = service.schema.views(service.strategy.model_for(0))
    assert all(torch.equal(torch.from_numpy(pulled.tensors[name]), tensor) for name, tensor in served.items())
    for client in range(CLIENTS):
        trained, applied = processes.trained(client), tasks_in(journal, client)
        assert applied in (trained, trained[:-1]), (
            f"client {client}: the last may not have been pushed, all others were"
        )
        assert service.members[client].updates == len(applied)
    assert not processes.logged("server", "refused")

    # All events from the beginning on, over three lives of the server, against what the last of them wrote at its end.
    assert isinstance(replayed.settings, ServiceSettings)
    written = open_service(journal, replayed.settings)
    written.journal.close()
    said = json.loads(polytempo_command("replay", journal, "--json"))
    assert said["fedasync"]["digest"] == written.service.digest() == service.digest()

    settings: dict[str, Any] = {"data": "digits", **DATA, "devices": "homogeneous", "epochs": 5}
    simulated = polytempo.simulate("fedasync", updates=service.updates, **settings).accuracy
    assert mean_accuracy(service.strategy) == pytest.approx(simulated, abs=0.02)
