"""The contract of executors: joined in the order asked for, bounded, and errors come out where they belong."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from polytempo.core.errors import UserError
from polytempo.sim.executors.executor import Executor
from polytempo.sim.executors.threads import Threads
from support.errands import Broken, Errands, Gate, Note, Square, noted, pipe_in

Make = Callable[..., Executor]


@pytest.fixture(params=["threads", "ray"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Opens executors, and closes them after the test."""
    opened: list[Executor] = []
    kind: Make = Threads
    if request.param == "ray":
        request.getfixturevalue("cluster")
        from polytempo.sim.executors.actors import Actors  # here, because Ray reads its environment when it is imported

        kind = Actors

    def open_one(workers: int = 2, ahead: int = 4) -> Executor:
        opened.append(kind(Errands(), workers, ahead))
        return opened[-1]

    yield open_one
    for executor in opened:
        executor.close()


def test_results_come_back_by_key_in_any_order(make: Make) -> None:
    executor = make()
    for key in range(20):
        executor.submit(key, float(key), Square(key))
    assert [executor.fetch(key) for key in reversed(range(20))] == [key * key for key in reversed(range(20))]


def test_no_more_than_the_bound_is_computed_ahead(make: Make, tmp_path: Path) -> None:
    executor = make(workers=2, ahead=4)
    for key in range(50):
        executor.submit(key, float(key), Note(tmp_path / "book", str(key)))
    executor.fetch(0)
    executor.fetch(1)
    executor.close()
    assert max(map(int, noted(tmp_path / "book"))) <= 1 + 4


def test_the_earliest_arrival_is_computed_first(make: Make, tmp_path: Path) -> None:
    executor, pipe = make(workers=1, ahead=1), pipe_in(tmp_path)
    executor.submit("gate", 0.0, Gate(pipe))
    for key in (3, 1, 2):
        executor.submit(key, float(key), Note(tmp_path / "book", str(key)))
    pipe.write_text("open")
    assert executor.fetch("gate") == "open"
    for key in (1, 2, 3):
        executor.fetch(key)
    assert noted(tmp_path / "book") == ["1", "2", "3"]


def test_what_is_fetched_is_computed_before_what_arrives_earlier(make: Make, tmp_path: Path) -> None:
    executor, pipe = make(workers=1, ahead=1), pipe_in(tmp_path)
    executor.submit("gate", 0.0, Gate(pipe))
    for key in (1, 2, 3):
        executor.submit(key, float(key), Note(tmp_path / "book", str(key)))
    pipe.write_text("open")
    executor.fetch(3)
    assert "3" in noted(tmp_path / "book")[:2]


def test_evaluation_comes_before_training(make: Make, tmp_path: Path) -> None:
    executor, pipe = make(workers=1, ahead=1), pipe_in(tmp_path)
    executor.submit("gate", 0.0, Gate(pipe))
    executor.submit("training", 1.0, Note(tmp_path / "book", "training"))
    pipe.write_text("open")
    executor.evaluate([Note(tmp_path / "book", "evaluation"), Note(tmp_path / "book", "another")])
    executor.fetch("training")
    assert noted(tmp_path / "book") == ["evaluation", "another", "training"]


def test_a_cancelled_computation_leaves_room_for_others(make: Make) -> None:
    executor = make()
    for key in range(10):
        executor.submit(key, float(key), Square(key))
    for key in range(9):
        executor.cancel(key)
    executor.submit("next", 100.0, Square(11))
    assert executor.fetch(9) == 81
    assert executor.fetch("next") == 121


def test_a_computation_that_is_changed_while_it_goes_on_gives_the_new_result(make: Make, tmp_path: Path) -> None:
    executor, pipe = make(workers=1), pipe_in(tmp_path)
    executor.submit("refreshed", 0.0, Gate(pipe))
    with pipe.open("w"):  # as soon as it is being computed
        executor.cancel("refreshed")
        executor.submit("refreshed", 1.0, Square(3))
    assert executor.fetch("refreshed") == 9


@pytest.mark.parametrize("error", [ZeroDivisionError("a message"), UserError("Not like this.")])
def test_an_error_in_a_computation_is_raised_where_it_is_fetched(make: Make, error: Exception) -> None:
    executor = make()
    executor.submit("bad", 0.0, Broken(error))
    with pytest.raises(type(error), match=str(error)) as raised:
        executor.fetch("bad")
    assert "errands.py" in told_by(raised)
    assert executor.evaluate([Square(1), Square(2)]) == [1, 4]


def told_by(raised: pytest.ExceptionInfo[Any]) -> str:
    """The stack of an error, and what was noted about it."""
    notes = getattr(raised.value, "__notes__", [])
    return "\n".join([*(str(entry.path) for entry in raised.traceback), *notes])


def test_time_is_spent_only_while_there_is_work(make: Make) -> None:
    executor = make()
    before = executor.spent()
    executor.evaluate([Square(1)])
    after_evaluation = executor.spent()
    executor.submit("training", 0.0, Square(1000))
    executor.fetch("training")
    after_training = executor.spent()
    assert (before.training_cpu, before.working_wall, after_evaluation.training_cpu) == (0, 0, 0)
    assert 0 < after_evaluation.working_wall < after_training.working_wall
    assert after_training.training_cpu > 0
    assert executor.spent() == after_training


def test_an_executor_that_was_not_used_closes(make: Make) -> None:
    make().close()


def test_an_executor_closes_with_computations_that_nobody_fetched(make: Make) -> None:
    executor = make()
    for key in range(20):
        executor.submit(key, float(key), Square(key))
    executor.close()
