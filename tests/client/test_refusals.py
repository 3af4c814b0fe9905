"""A client whose updates are refused ends before the server ignores it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytempo.core.errors import UserError
from polytempo_client.errors import RefusedError
from polytempo_client.protocol.tasks import Task
from support.serving import nudge, running

pytestmark = pytest.mark.usefixtures("short_pauses")

FAR = 1e6
"""Farther from its start than the server takes an update."""


def test_a_client_whose_updates_are_always_refused_ends_with_the_reason(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client(0) as client, pytest.raises(RefusedError, match="exceeds"):
        client.run(lambda task: (nudge(task, FAR), 5), updates=1)
    assert server.host.service.updates == 0


def test_a_loop_that_goes_on_after_refusals_is_stopped_before_the_server_ignores_its_client(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        with server.client(0) as client:
            task, said = client.task(30), []
            for _ in range(30):
                with pytest.raises(UserError) as refusal:
                    client.push(task, nudge(task, FAR), samples=5, timeout=30)
                said.append(type(refusal.value))
        assert said == [RefusedError] * 5 + [UserError] * 25
        assert "in service.toml. Correct the cause, then make a new Client." in str(refusal.value)
        assert server.shared.meters.refusals["push"] == 5
        with server.client(0) as mended:
            mended.run(lambda task: (nudge(task), 5), updates=1)
        assert server.shared.access.roster.quarantined == {}


def test_only_refusals_in_a_row_stop_a_client(tmp_path: Path) -> None:
    with running(tmp_path) as server, server.client(0) as client:
        for _ in range(3):
            task = client.task(30)
            for _ in range(4):
                with pytest.raises(RefusedError):
                    client.push(task, nudge(task, FAR), samples=5, timeout=30)
            client.push(task, nudge(task), samples=5, timeout=30)
        assert server.host.service.updates == 3


def test_refusals_are_counted_for_each_run(tmp_path: Path) -> None:
    trained: list[int] = []

    def train(task: Task) -> Any:
        trained.append(task.number)
        return nudge(task, FAR), 5

    with running(tmp_path) as server, server.client(0) as client:
        for _ in range(2):
            with pytest.raises(RefusedError):
                client.run(train, updates=1, refusals=2)
        assert len(trained) == 4
        with pytest.raises(RefusedError):
            client.run(train, updates=1, refusals=2)
        assert len(trained) == 5  # in a row, in all


def breaking(task: Task) -> Any:
    """An update that the method of these services fails on."""
    return nudge(task), 5, {"answers": {"break": 1.0}}


def test_updates_that_the_method_fails_on_do_not_stop_a_client(tmp_path: Path) -> None:
    tasks: list[int] = []

    def train(task: Task) -> Any:
        tasks.append(task.number)
        return breaking(task) if len(tasks) <= 7 else (nudge(task), 5)

    with running(tmp_path, "support.serving:Brittle") as server, server.client(0) as client:
        client.run(train, updates=1)
        assert len(tasks) == 8
        assert server.shared.access.roster.quarantined == {}


def test_a_limit_of_refusals_that_is_given_counts_failures_of_the_method_too(tmp_path: Path) -> None:
    with running(tmp_path, "support.serving:Brittle") as server, server.client(0) as client:
        with pytest.raises(RefusedError, match="ZeroDivisionError") as refusal:
            client.run(breaking, updates=1, refusals=1)
        assert refusal.value.failed
        assert server.shared.meters.strategy_failures == 1


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"samples": -5}, "samples is -5. Expected a whole number from 1 to "),
        ({"samples": 0}, "samples is 0. Expected"),
        ({"samples": 1.5}, "samples is 1.5. Expected"),
        ({"samples": None}, "samples is None. Expected"),
        ({"samples": 2**64}, f"samples is {2**64}. Expected"),
        ({"samples": 1, "steps": -1}, "steps is -1. Expected a whole number from 0 to "),
        ({"samples": 1, "chosen": 0.5}, "chosen is 0.5. Expected"),
    ],
)
def test_a_count_that_is_none_is_an_error_with_its_name(tmp_path: Path, counts: Any, message: str) -> None:
    with running(tmp_path) as server, server.client(0) as client:
        task = client.task(30)
        with pytest.raises(UserError, match=re.escape(message)):
            client.push(task, nudge(task), timeout=30, **counts)
        client.push(task, nudge(task), samples=np.int64(3), steps=np.uint8(0), timeout=30)  # type: ignore[arg-type]
        assert server.shared.meters.refusals["push"] == 0
