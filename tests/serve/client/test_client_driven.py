"""A client that asks when it wants: it holds its task, looks at its data, and its data may change."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polytempo.core.errors import UserError
from polytempo.core.model.vectors import flatten
from polytempo.core.orders import Orders, Report, Send
from polytempo.learn.models import Inputs
from polytempo.serve.client import own_data
from polytempo.serve.client.join import Participant, Trained, join
from polytempo.serve.client.own_data import OwnData, file_stamp, make_join_settings
from polytempo.strategies import Strategy
from polytempo.testing import tiny_dataset
from polytempo.world.data import load_dataset
from polytempo.world.dataset import Dataset
from polytempo.world.drift import Drift
from polytempo.world.partitions import make_federation
from polytempo_client.asking.policies import LOOKS, parse_asking, wait
from polytempo_client.client import Client
from polytempo_client.protocol.tasks import Task
from polytempo_client.protocol.wire_pb2 import Head, Leave
from support.serving import Running, running, settled

MODEL = {"model": "test_client_driven:linear", "engine": "eager"}
LINEAR = {**MODEL, "data": "test_client_driven:data"}
Hold = Callable[[Task, float], bool]


def data() -> Dataset:
    return tiny_dataset()


def linear(_: Inputs) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3))


class Nudging(Strategy):
    """When client 1 pulls, client 0 is told something; ``last`` is its last update."""

    say: str = "report"

    def pulled(self, client: int, now: float) -> Orders:
        if client == 1:
            weights = 0.9 * self.model.weights + 0.01
            yield Report(0) if self.say == "report" else Send(0, weights, 7)

    def updated(self, update: Any, now: float) -> None:
        self.last = update


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with serving_linear(tmp_path) as server:
        yield server


def serving_linear(directory: Path, strategy: str = "fedasync", **given: Any) -> Any:
    """A server for the linear model."""
    common = {"init": None, "model": LINEAR["model"], "data": LINEAR["data"], "steps": None, "batch_size": 4}
    return running(directory, strategy, **common, **given)


def own(client: Client, **settings: Any) -> OwnData:
    number, _, seed = client.wait_for_welcome(60)
    given = make_join_settings(**{**LINEAR, **settings})
    return OwnData(given, load_dataset(given.data), number, seed, file_stamp(given.data))


def logged(monkeypatch: pytest.MonkeyPatch, module: Any = "polytempo.serve.client.join") -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(f"{module}.log", lambda event, **fields: lines.append({"event": event, **fields}))
    return lines


def withdraw(client: Client) -> None:
    """Let the server forget the client's task."""
    client._connection.ask(Head(leave=Leave()))
    settled(client)


# Holding a task.


def test_a_task_is_held_until_the_time_is_over(server: Running) -> None:
    with server.client(0) as client:
        assert client.hold(client.task(60), 0)


@pytest.mark.parametrize("say", ["report", "withdraw"])
def test_nobody_is_kept_waiting_whom_the_server_tells_not_to(tmp_path: Path, say: str) -> None:
    nudging = serving_linear(tmp_path, "test_client_driven:Nudging")
    with nudging as server, server.client(0) as client, server.client(1) as other, ThreadPoolExecutor(1) as pool:
        task = client.task(60)
        held = pool.submit(client.hold, task, 3600)
        if say == "report":
            other.pull(60)
        else:
            withdraw(client)
        assert held.result(60) is False
        assert (task.reported, task.withdrawn) == (say == "report", say == "withdraw")


def test_closing_ends_the_wait(server: Running) -> None:
    with ThreadPoolExecutor(1) as pool:
        client = server.client(0)
        held = pool.submit(client.hold, client.task(60), 3600)
        client.close()
        with pytest.raises(UserError, match="closed"):
            held.result(60)


def test_a_client_waits_as_its_policy_says_and_then_trains(server: Running) -> None:
    trained: list[Trained] = []
    waited: list[tuple[float, int]] = []

    def hold(task: Task, seconds: float) -> bool:
        waited.append((seconds, len(trained)))
        return True

    with server.client(2) as client:
        participant = Participant(own(client), parse_asking("think:60"), hold, trained.append)
        client.run(participant.carry_out, 3, participant.pushed)
    assert waited == [(wait(parse_asking("think:60"), 0, 2, count), count) for count in range(3)]
    assert [it.steps for it in trained] == [12, 12, 12]


@pytest.mark.parametrize(("say", "version", "steps"), [("report", 0, 0), ("send", 7, 12)])
def test_what_comes_while_a_task_is_held_is_heeded(tmp_path: Path, say: str, version: int, steps: int) -> None:
    nudging = serving_linear(tmp_path, "test_client_driven:Nudging", parameters={"say": say})
    with nudging as server, server.client(0) as client, server.client(1) as other:

        def hold(task: Task, seconds: float) -> bool:
            other.pull(60)
            client.pull(60)  # what was sent before this answer has arrived
            return client.hold(task, 0)

        participant = Participant(own(client), parse_asking("every:3600"), hold)
        client.run(participant.carry_out, 1)
        last = server.host.service.strategy.last
    assert (last.version, last.steps) == (version, steps)
    assert torch.equal(last.weights, last.start) == (steps == 0)


def test_a_task_that_is_withdrawn_while_it_is_held_is_not_pushed(server: Running) -> None:
    tasks: list[int] = []
    with server.client(0) as client:

        def hold(task: Task, seconds: float) -> bool:
            tasks.append(task.number)
            if len(tasks) == 1:
                withdraw(client)
                return client.hold(task, 3600)
            return True

        participant = Participant(own(client), parse_asking("every:3600"), hold)
        client.run(participant.carry_out, 1)
    assert len(tasks) == 2
    assert server.host.service.members[0].updates == 1


@pytest.fixture
def interrupted() -> Iterator[threading.Event]:
    """Set when Ctrl-C has reached the test, once. A job in the background of a shell would ignore it."""
    reached = threading.Event()

    def interrupt(*_: Any) -> None:
        if not reached.is_set():
            reached.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    yield reached
    signal.signal(signal.SIGINT, before)


def test_a_client_that_is_interrupted_while_it_holds_a_task_leaves(
    server: Running, monkeypatch: pytest.MonkeyPatch, interrupted: threading.Event
) -> None:
    holds, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def wait_long(*_: Any) -> float:
        holds.set()
        return 3600.0

    def interrupt() -> None:
        assert holds.wait(60)
        while not interrupted.wait(0.02):  # Python heeds a signal that comes just before it waits only with the next
            signal.pthread_kill(main, signal.SIGINT)

    monkeypatch.setattr("polytempo.serve.client.join.wait", wait_long)
    settings = make_join_settings(**LINEAR, ask="every:9")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            join(lambda: server.client(0), settings)
    assert not server.host.service.is_member(0)


# Looking at one's data.


def write_data(path: Path, labels: list[int]) -> None:
    """Samples with these labels; a file that is there is replaced, as late as its clock can tell."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    x = np.random.default_rng(0).normal(size=(len(labels), 4))
    x[np.arange(len(labels)), labels] += 3
    np.savez(path, x=x, y=labels)
    os.utime(path, ns=(before + 10**9, before + 10**9))


def test_a_client_asks_as_soon_as_its_file_holds_other_labels(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, looks, lines = tmp_path / "own.npz", [], logged(monkeypatch)
    write_data(file, [0, 1, 2] * 20)

    def hold(task: Task, seconds: float) -> bool:
        looks.append(task.count)
        if len(looks) == 3:
            write_data(file, [0, 1] + [2] * 58)
        return True

    trained: list[Trained] = []
    with server.client(0) as client:
        participant = Participant(own(client, data=str(file)), parse_asking("labels:60"), hold, trained.append)
        client.run(participant.carry_out, 2, participant.pushed)
    assert looks == [1, 1, 1]  # for its first task it did not wait
    why = [line["why"].split(",")[0] for line in lines if line["event"] == "asks"]
    assert why == ["it has not trained yet", "labels"]


@pytest.mark.parametrize("policy", ["labels:60", "loss:60", "accuracy:60"])
def test_a_client_whose_data_stay_asks_after_all(server: Running, policy: str) -> None:
    looks: list[float] = []
    with server.client(0) as client:
        participant = Participant(own(client), parse_asking(policy), lambda _, seconds: not looks.append(seconds))
        client.run(participant.carry_out, 2)
    assert looks == [60.0] * LOOKS


def test_files_are_read_again_when_they_change_and_only_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "own.npz"
    write_data(file, [0, 1, 2] * 10)
    settings = make_join_settings(**MODEL, data=str(file))
    mine = OwnData(settings, load_dataset(str(file)), 0, 0, file_stamp(str(file)))
    monkeypatch.setattr(own_data, "load_dataset", lambda *_: pytest.fail("nothing has changed"))
    assert len(mine.now().train) == 24
    monkeypatch.undo()
    write_data(file, [0, 1, 2] * 20)
    assert len(mine.now().train) == 48


@pytest.mark.parametrize("spoil", ["damage", "remove", "other classes"])
def test_a_client_goes_on_with_the_data_it_has_when_the_new_ones_are_no_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: str
) -> None:
    file, lines = tmp_path / "own.npz", logged(monkeypatch, "polytempo.serve.client.own_data")
    write_data(file, [0, 1, 2] * 10)
    mine = OwnData(make_join_settings(**MODEL, data=str(file)), load_dataset(str(file)), 0, 0, file_stamp(str(file)))
    if spoil == "damage":
        file.write_bytes(b"half")
    elif spoil == "remove":
        file.unlink()
    else:
        write_data(file, [0, 1] * 20)
    assert [len(mine.now().train) for _ in range(2)] == [24, 24]
    assert [line["event"] for line in lines] == ["data not read"]
    write_data(file, [0, 1, 2] * 20)
    assert len(mine.now().train) == 48


def test_the_stamp_of_a_folder_changes_with_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    stamps = [file_stamp(str(tmp_path))]
    (tmp_path / "class/image.png").write_bytes(b"1")
    stamps.append(file_stamp(str(tmp_path)))
    assert stamps[0] != stamps[1] == file_stamp(str(tmp_path))
    assert file_stamp("digits") is file_stamp("package.module:function") is None


# Mixtures that drift, and samples that are the server's.


def test_a_clients_mixture_is_drawn_anew_after_so_many_tasks() -> None:
    settings = make_join_settings(model="mlp", partition="rotations:2", clients=3, drift_every=2, engine="eager")
    digits = load_dataset("digits")
    mine = OwnData(settings, digits, 1, 5)
    drift = Drift(kind="mixture", after=2, every=2)
    twin = make_federation(digits, "rotations:2", 3, 5, drifts=(drift,))
    for count, generation in enumerate([0, 0, 1, 1, 2]):
        local, expected = mine.now(count), twin.client(1, generation)
        assert np.array_equal(local.train, expected.train)
        assert np.array_equal(local.test, expected.test)
    assert not np.array_equal(mine.now(0).train, mine.now(2).train)


def test_a_joined_client_does_not_hold_the_servers_samples() -> None:
    settings = make_join_settings(**LINEAR, partition="groups:2", clients=2, proxies=4)
    twin = make_federation(data(), "groups:2", 2, 0, proxies=4)
    set_aside = {int(row) for cluster in twin.clusters for row in cluster.proxy}
    assert set_aside
    for client in range(2):
        assert set_aside.isdisjoint(OwnData(settings, data(), client, 0).now().train.tolist())


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"drift_every": 2}, "belong to a partition"),
        ({"proxies": 2}, "belong to a partition"),
        ({"drift_every": 2, "partition": "iid", "clients": 2}, "mixes no clusters"),
    ],
)
def test_drift_and_proxies_without_clusters_are_an_error(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        OwnData(make_join_settings(**LINEAR, **given), data(), 0, 0)


def test_a_policy_that_is_not_understood_is_an_error_before_anything_is_sent() -> None:
    with pytest.raises(UserError, match="Expected every:60"):
        join(lambda: pytest.fail("a session was opened"), make_join_settings(**LINEAR, ask="every:soon"))


# Exchanges.


def test_each_exchange_is_logged_with_the_accuracy_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = logged(monkeypatch)
    given, pushed = [], []
    with serving_linear(tmp_path, lr=0.5) as server, server.client(0) as client:
        mine = own(client)
        participant = Participant(mine, None, client.hold)

        def train(task: Task) -> Any:
            handed = participant.carry_out(task)
            given.append(task.tensors)
            pushed.append(handed[0])
            return handed

        client.run(train, 3, participant.pushed)

    def accuracy(tensors: dict[str, np.ndarray]) -> float:
        local, learner = mine.now(), mine.learner
        weights = flatten(learner.schema, {name: torch.from_numpy(array) for name, array in tensors.items()})
        return round(float(learner.scorer.metric(weights, local.x, local.y[local.test], local.test).mean()), 4)

    # With its last update it asked for no model.
    exchanges = [line for line in lines if line["event"] == "exchange"]
    assert [line["version"] for line in exchanges] == [1, 2]
    assert [line["before"] for line in exchanges] == [accuracy(tensors) for tensors in pushed[:2]]
    assert [line["after"] for line in exchanges] == [accuracy(tensors) for tensors in given[1:]]
    assert len({*map(accuracy, pushed), *map(accuracy, given)}) > 1


@pytest.mark.parametrize(("keeps", "versions"), [(True, [1, 2, 3]), (False, [1, 2])])
def test_a_client_that_keeps_its_task_logs_the_exchange_of_its_last_update_too(
    server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool, versions: list[int]
) -> None:
    lines, keep = logged(monkeypatch), tmp_path / "task" if keeps else None
    join(lambda: server.client(0, keep=keep), make_join_settings(**LINEAR), updates=3)
    assert [line["version"] for line in lines if line["event"] == "exchange"] == versions


def test_a_refused_update_is_no_exchange(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = logged(monkeypatch)
    with server.client(0) as client:
        participant = Participant(own(client), None, client.hold)
        calls: list[Task] = []

        def train(task: Task) -> Any:
            tensors, samples, more = participant.carry_out(task)
            calls.append(task)
            broken = {name: array * np.float32("nan") for name, array in tensors.items()}
            return (broken if len(calls) == 1 else tensors), samples, more

        client.run(train, 1, participant.pushed)
    assert len(calls) == 2
    assert "exchange" not in [line["event"] for line in lines]
