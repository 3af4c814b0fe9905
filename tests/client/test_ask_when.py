"""A client with a training loop of its own that asks by a policy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytempo.core.errors import UserError
from polytempo_client import AskWhen
from polytempo_client.asking.policies import FRESH, LOOKS
from support.serving import nudge, running

NOTHING = np.zeros((2, 1))


class Held:
    """A task that is held, and what a client has meanwhile: at each look the next of these labels."""

    count = 0
    number = 7

    def __init__(self, *labels: list[int]) -> None:
        self.held = {"right": np.ones(1)}
        self.labels = list(labels)
        self.waits: list[float] = []

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        y = np.array(self.labels[min(len(self.waits), len(self.labels) - 1)])
        return np.zeros((len(y), 1)), y

    def score(self, tensors: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Right where the label is 0."""
        return 1.0 * (y != 0), y == 0

    def hold(self, task: Any, seconds: float) -> bool:
        self.waits.append(seconds)
        return len(self.waits) < 200

    def wait(self, ask: AskWhen) -> list[float]:
        self.waits = []
        ask.wait(self, 0, 3, self.hold)  # type: ignore[arg-type]
        return self.waits


def test_a_client_that_watches_asks_at_once_if_it_never_trained_and_then_when_its_labels_are_others() -> None:
    held = Held([0, 1] * 20)
    ask = AskWhen("labels:60", held.data)
    assert held.wait(ask) == []
    held.labels = [[0, 1] * 20, [1, 0] * 20, [1] * 40]
    assert held.wait(ask) == [60, 60]


@pytest.mark.parametrize("policy", ["loss:30", "accuracy:30"])
def test_a_client_asks_when_the_model_that_it_holds_does_worse(policy: str) -> None:
    held = Held([0] * 40)
    ask = AskWhen(policy, held.data, held.score)
    assert held.wait(ask) == []
    held.labels = [[0] * 40, [0] * 40, [0] * 40, [1] * 40]
    assert held.wait(ask) == [30, 30, 30]


def test_a_client_whose_data_stay_the_same_asks_after_so_many_looks() -> None:
    held = Held([0, 1] * 20)
    ask = AskWhen("labels:60", held.data)
    held.wait(ask)
    assert held.wait(ask) == [60] * LOOKS


def test_a_client_looks_at_some_of_many_rows() -> None:
    seen: list[int] = []
    held = Held([0] * 1000)

    def score(tensors: Any, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen.append(len(y))
        return held.score(tensors, x, y)

    ask = AskWhen("accuracy:60", held.data, score)
    held.wait(ask)
    held.labels = [[1] * 1000]
    assert held.wait(ask) == [60]
    assert seen == [FRESH, FRESH]


def test_time_alone_needs_no_data() -> None:
    held = Held([0])
    assert held.wait(AskWhen("every:60")) == [60]
    assert 0 < held.wait(AskWhen("think:60"))[0] != 60


def test_the_server_may_want_the_task_before_the_client_asks() -> None:
    held = Held([0, 1] * 20)
    ask = AskWhen("labels:60", held.data)
    held.wait(ask)
    held.hold = lambda task, seconds: False  # type: ignore[method-assign]
    assert held.wait(ask) == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("labels:60",), "give data="),
        (("loss:60", lambda: None), "needs score="),
        (("labls:60",), "Did you mean 'labels'"),
    ],
)
def test_what_a_policy_needs_is_said_at_once(given: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        AskWhen(*given)


@pytest.mark.parametrize(
    ("data", "score", "message"),
    [
        (lambda: (NOTHING, [1, 2, 3]), None, "x has 2 rows, y 3"),
        (lambda: (NOTHING, [1, 2]), lambda *_: (1.0, 2.0), r"two numbers per row of 2: got \(\) and \(\)"),
    ],
)
def test_functions_that_return_something_else_are_named(data: Any, score: Any, message: str) -> None:
    held = Held([0])
    ask = AskWhen("accuracy:60", data, score or held.score)
    ask._trained_on = ask._rows((0, 3, 0), 0) if score else None
    with pytest.raises(UserError, match=message):
        held.wait(ask)


def test_a_client_that_runs_holds_each_task_until_it_asks(tmp_path: Path) -> None:
    looks: list[int] = []

    def data() -> tuple[np.ndarray, np.ndarray]:
        looks.append(1)
        y = np.arange(40) % (2 if len(looks) < 4 else 5)
        return np.zeros((40, 1)), y

    with running(tmp_path) as server, server.client(0) as client:
        client.run(lambda task: (nudge(task), 5), updates=2, ask=AskWhen("labels:0.01", data))
        assert server.host.service.members[0].updates == 2
    assert len(looks) > 3
