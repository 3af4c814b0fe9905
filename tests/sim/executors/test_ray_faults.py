"""What goes wrong on a Ray cluster: it costs time, or it is told in one sentence and nothing is lost."""

import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from polytempo import simulate
from polytempo.core.errors import PassingError, UserError, exit_code
from polytempo.sim.executors import cluster as cluster_module
from polytempo.sim.executors.cluster import connected
from polytempo.sim.executors.executor import Executor
from polytempo.sim.experiment import make_experiment, read_experiment
from support.clusters import Cluster
from support.errands import Broken, Deadly, Errands, Square, Sum

Make = Callable[[int], Executor]


@pytest.fixture
def make(cluster: Cluster) -> Iterator[Make]:
    from polytempo.sim.executors.actors import Actors

    opened: list[Executor] = []

    def open_one(workers: int) -> Executor:
        opened.append(Actors(Errands(), workers))
        return opened[-1]

    yield open_one
    for executor in opened:
        executor.close()


# Before anything begins.


def test_without_ray_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"executor ray needs Ray\. Install it: pip install 'polytempo\[ray\]'"):
        simulate("fedasync", executor="ray")


def test_an_address_where_no_cluster_answers_may_do_so_later(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(PassingError, match=f"No Ray cluster answers at {address}") as raised:
        simulate("fedasync", executor=f"ray:{address}")
    assert exit_code(raised.value) == 75


def test_a_process_is_at_one_cluster_only(cluster: Cluster) -> None:
    with pytest.raises(UserError, match="Expected the same, or ray in a process of its own"), connected("ray"):
        pass


def test_a_cluster_that_was_started_here_lasts_until_the_last_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    there: list[bool] = []
    monkeypatch.setattr(cluster_module, "_connection", {})
    monkeypatch.setattr(cluster_module, "_users", 0)
    monkeypatch.setattr(ray, "is_initialized", lambda: bool(there))
    monkeypatch.setattr(ray, "init", lambda **_: there.append(True))
    monkeypatch.setattr(ray, "shutdown", there.clear)
    first, second = connected("ray"), connected("ray")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert there
    second.__exit__(None, None, None)
    assert not there


@pytest.mark.parametrize("word", ["rays", "ray:", "thread"])
def test_another_word_is_no_executor(word: str) -> None:
    with pytest.raises(UserError, match=f"executor is '{word}'. Expected threads, ray, or ray:ADDRESS"):
        make_experiment(strategy="fedasync", executor=word)


def test_a_file_may_not_choose_a_cluster_unless_the_user_names_it_too(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('strategy = "fedasync"\nexecutor = "ray:10.0.0.1:6379"\n')
    with pytest.raises(UserError, match=r"repeat it on the command line: --executor ray:10\.0\.0\.1:6379"):
        read_experiment(file, {}, {})
    assert read_experiment(file, {}, {"executor": "ray:10.0.0.1:6379"}).executor == "ray:10.0.0.1:6379"
    assert read_experiment(file, {}, {"executor": "threads"}).executor == "threads"


def test_where_a_run_is_computed_is_no_part_of_what_decides_it() -> None:
    here, there = (make_experiment(strategy="fedasync", executor=word) for word in ("threads", "ray"))
    assert here.settings() == there.settings()


# While it goes on.


@pytest.mark.parametrize(
    ("name", "there", "told"),
    [("torch", "2.0", "torch 2.13"), ("cpu features", "none", "a CPU with other features than this machine's")],
)
def test_a_node_with_other_versions_or_another_cpu_is_refused(
    make: Make, monkeypatch: pytest.MonkeyPatch, name: str, there: str, told: str
) -> None:
    from polytempo.sim.executors import actors

    here = actors.machine()
    monkeypatch.setattr(actors, "machine", lambda: {**here, name: there})
    executor = make(1)
    with pytest.raises(
        UserError, match=r"The node 127.0.0.1 has .*: its results would differ in their last bits"
    ) as raised:
        executor.evaluate([Square(1)])
    assert told in str(raised.value)


def test_a_model_that_several_hold_is_put_once_and_does_not_come_back(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    model, executor = torch.randn(100_000), make(2)
    executor.evaluate([Square(1)])
    put: list[object] = []
    ray_put = ray.put
    monkeypatch.setattr(ray, "put", lambda value: put.append(value) or ray_put(value))
    for key in range(12):
        executor.submit(key, float(key), Sum(model, torch.full((3,), float(key))))
    for key in range(12):
        same, total, private = executor.fetch(key)
        assert same is model
        assert torch.equal(total, model + torch.arange(100_000.0))
        assert private.tolist() == [key] * 3
        assert total.data_ptr() % 64 == 0
    assert len(put) == 1


def test_memory_that_runs_out_in_a_worker_is_told_in_a_sentence(make: Make) -> None:
    executor = make(1)
    for error in (MemoryError("so much"), RuntimeError("DefaultCPUAllocator: can't allocate memory")):
        with pytest.raises(PassingError, match=r"A worker on 127\.0\.0\.1 ran out of memory"):
            executor.evaluate([Broken(error)])


def test_an_error_that_cannot_travel_is_told_in_words(make: Make) -> None:
    with pytest.raises(RuntimeError, match="StubbornError: a message") as raised:
        make(1).evaluate([Broken(None)])
    assert "errands.py" in raised.value.__notes__[0]


def test_a_worker_that_dies_costs_time_only(make: Make, tmp_path: Path) -> None:
    executor = make(2)
    for key in range(8):
        executor.submit(key, float(key), Deadly(tmp_path / "once") if key == 3 else Square(key))
    assert [executor.fetch(key) for key in range(8)] == [0, 1, 4, None, 16, 25, 36, 49]


def test_a_computation_that_kills_every_worker_is_given_up(make: Make) -> None:
    executor = make(3)
    executor.submit("deadly", 0.0, Deadly(None))
    with pytest.raises(PassingError, match="3 workers died one after the other in the same computation") as raised:
        executor.fetch("deadly")
    assert exit_code(raised.value) == 75
    with pytest.raises(PassingError, match="died one after the other"):
        executor.submit("next", 1.0, Square(1))
