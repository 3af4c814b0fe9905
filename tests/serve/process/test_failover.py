"""Two servers in processes of their own on one database: the leader dies, and its clients go on with the other."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from polytempo_client import Client, Task
from support.postgres import Server
from support.processes import Processes
from support.serving import nudge
from support.several import QUICK, Several, several

pytestmark = pytest.mark.usefixtures("short_pauses")


class Pair:
    """Server a leads, and b stands by."""

    def __init__(self, servers: Several) -> None:
        self.servers = servers
        self._lives = {name: Processes(servers.prepared(name), "fedasync") for name in ("a", "b")}
        self.a, self.b = self._lives["a"], self._lives["b"]
        self.leader = self.a.begin_to_serve("--insecure")
        self.a.wait_until(lambda: servers.leads("a"))
        self.standby = self.b.begin_to_serve("--insecure")
        self.a.wait_until(lambda: servers.stands_by("b"))

    def client(self) -> Client:
        token = self.servers.directory / "a" / "client-0.token"
        return Client([self.a.address, self.b.address], token, insecure=True)

    def written(self) -> list[int]:
        """Tasks whose updates the journal holds, in order."""
        sql = "SELECT detail::json ->> 'task' FROM events WHERE kind = 'updated' AND void IS NULL ORDER BY number"
        return [int(task) for (task,) in self.servers.execute(sql)]

    def end(self) -> None:
        for life in self._lives.values():
            life.end()


@contextmanager
def pair(directory: Path, database: Server) -> Iterator[Pair]:
    with several(directory, database, QUICK) as servers:
        both = Pair(servers)
        try:
            yield both
        finally:
            both.end()


def send(process: BaseProcess, number: signal.Signals) -> None:
    assert process.pid is not None
    os.kill(process.pid, number)


def push(client: Client, task: Task) -> int:
    client.push(task, nudge(task), samples=10, timeout=120)
    return task.number


def test_clients_of_a_leader_that_is_killed_go_on_with_the_other_and_nothing_is_lost(
    tmp_path: Path, database: Server
) -> None:
    with pair(tmp_path, database) as both, both.client() as client:
        tasks = [push(client, client.task(60)) for _ in range(3)]
        task = client.task(60)
        send(both.leader, signal.SIGSTOP)
        pushing = threading.Thread(target=push, args=(client, task))
        pushing.start()  # nobody answers it
        send(both.leader, signal.SIGKILL)
        pushing.join()
        tasks += [task.number, *(push(client, client.task(60)) for _ in range(3))]
        assert both.written() == tasks


def test_clients_leave_a_leader_that_is_silent_and_it_acknowledges_nothing_when_it_comes_back(
    tmp_path: Path, database: Server
) -> None:
    with pair(tmp_path, database) as both, both.client() as client:
        tasks = [push(client, client.task(60))]
        task = client.task(60)
        send(both.leader, signal.SIGSTOP)
        try:
            tasks += [push(client, task), push(client, client.task(60))]
        finally:
            send(both.leader, signal.SIGCONT)
        both.a.wait_until(lambda: both.servers.stands_by("a"))
        assert both.written() == tasks
        assert both.servers.lease()["epoch"] == 2
