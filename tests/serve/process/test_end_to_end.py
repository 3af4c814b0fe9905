"""A real server and real clients, in processes of their own, on real data: they end where the simulator says that they
end, whatever is killed on the way."""

import json
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polytempo
from polytempo.cli import main as cli
from polytempo.serve.client.own_data import make_join_settings, make_local
from polytempo.serve.journal.opening import open_service
from polytempo.serve.journal.replay import replay
from polytempo.serve.journal.settings import ServiceSettings
from polytempo.strategies import Strategy
from polytempo.world.data import load_dataset
from polytempo_client.client import Client
from support.processes import CLIENTS, DATA, TIME_LIMIT, Processes, tasks_in

UPDATES = 20
"""Of each client, at least. After half of them the accuracy has levelled off: the order of arrival counts little."""
KILLED = (2, 5)


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
