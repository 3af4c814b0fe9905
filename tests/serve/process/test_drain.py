"""SIGTERM under load: what was acknowledged is kept, and clients go on after the restart as if nothing had been."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from polytempo.serve.access.certs import make_certs
from polytempo.serve.access.tokens import make_tokens
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.settings import make_settings
from polytempo_client.client import Client
from polytempo_client.session import search as search_module
from support.processes import Processes, tasks_in
from support.serving import nudge, until

CLIENTS = 6
RESTARTS = 2
SECONDS = 120.0
"""That anything may take before it counts as hanging."""


class Worker:
    """A client that hands in one update after the other, in a thread. ``acknowledged`` is what is safe, so it was told,
    with the server."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.acknowledged: list[int] = []
        self.failure: BaseException | None = None
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._enough.is_set():
                task = self.client.task()
                assert not task.withdrawn
                self.client.push(task, nudge(task, 0.001), samples=5)
                self.acknowledged.append(task.number)
        except BaseException as error:
            self.failure = error

    def end(self) -> None:
        self._enough.set()
        self._thread.join(SECONDS)


def updates_of_all(workers: list[Worker], count: int) -> None:
    """Wait until each has handed in so many more."""
    wanted = [len(worker.acknowledged) + count for worker in workers]

    def done() -> bool:
        assert [worker.failure for worker in workers if worker.failure is not None] == []
        return all(len(worker.acknowledged) >= many for worker, many in zip(workers, wanted, strict=True))

    until(done, SECONDS)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    make_certs(tmp_path, [])
    make_tokens(tmp_path, CLIENTS + 1)
    started = Processes(tmp_path, "fedasync")
    yield started
    started.end()


def connect(processes: Processes, client: int) -> Client:
    directory = processes.directory
    return Client(processes.address, directory / f"client-{client}.token", directory / "ca.pem")


def unanswered(directory: Path, client: int, acknowledged: list[int]) -> list[int]:
    """Tasks whose update the server has kept although the client does not know it yet; all that it does know of are
    kept, in order. The journal has forgotten the oldest, but not that there were some."""
    opened = open_service(directory, make_settings(strategy="fedasync", epochs=5))
    opened.journal.close()
    kept, updates = tasks_in(directory, client), opened.service.members[client].updates
    further = kept[len(kept) + len(acknowledged) - updates :]
    assert updates == len(acknowledged) + len(further)
    assert kept == [*acknowledged, *further][updates - len(kept) :]
    return further


def test_a_server_that_is_stopped_under_load_loses_nothing_and_its_clients_go_on(
    processes: Processes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_module, "LONGEST_PAUSE", 0.5)
    caplog.set_level(logging.INFO, "polytempo")
    journal = processes.directory / "journal"
    server = processes.serve()
    workers = [Worker(connect(processes, client)) for client in range(CLIENTS)]
    slow = connect(processes, CLIENTS)
    try:
        open_task = slow.task(SECONDS)
        for _ in range(RESTARTS):
            updates_of_all(workers, 5)
            server.terminate()
            assert processes.end_of(server) == 0, processes.logs()
            for number, worker in enumerate(workers):
                assert len(unanswered(journal, number, list(worker.acknowledged))) <= 1
            server = processes.serve()
        updates_of_all(workers, 5)
        assert not open_task.withdrawn
        slow.push(open_task, nudge(open_task, 0.001), samples=5, timeout=SECONDS)
        for worker in workers:
            worker.end()
    finally:
        for client in (slow, *(worker.client for worker in workers)):
            client.close()
    server.terminate()
    assert processes.end_of(server) == 0, processes.logs()
    for number, worker in enumerate(workers):
        assert worker.failure is None
        assert unanswered(journal, number, worker.acknowledged) == []
    assert unanswered(journal, CLIENTS, [open_task.number]) == []
    assert not processes.logged("server", "refused")
    assert not [record for record in caplog.records if record.getMessage() == "refused"]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
