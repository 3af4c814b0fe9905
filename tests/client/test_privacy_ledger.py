"""A client's updates are counted before they leave, and the count outlives everything but its file."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytempo.core.errors import UserError
from polytempo_client.errors import SpentError
from polytempo_client.model.schema import Schema
from polytempo_client.privacy import Privacy, epsilon, epsilon_at, updates_within
from polytempo_client.protocol import wire_pb2 as pb
from polytempo_client.protocol.bodies import entry_of, make_body
from polytempo_client.protocol.tasks import Task, task_of
from polytempo_client.updates.ledger import Ledger

PRIVACY = Privacy(1.0, 8.0)
MODEL = {"weight": np.arange(4, dtype=np.float32).reshape(2, 2), "bias": np.zeros(2, np.float32)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    Ledger(PRIVACY, tmp_path / "ledger.json", new=True)
    return tmp_path / "ledger.json"


def a_task(**said: Any) -> Task:
    schema = Schema(("weight", "bias"), ((2, 2), (2,)), 6)
    entries = tuple(entry_of(name, array) for name, array in MODEL.items())
    body = bytearray(b"".join(bytes(piece) for piece in make_body(entries, list(MODEL.values()))))
    return task_of(pb.Task(number=1, **said), body, schema)


def length(shown: dict[str, np.ndarray]) -> float:
    return math.sqrt(sum(float(((shown[name] - MODEL[name]) ** 2).sum()) for name in MODEL))


def test_the_count_outlives_the_process(file: Path) -> None:
    for process in range(3):
        ledger = Ledger(PRIVACY, file)
        assert ledger.updates == 2 * process
        ledger.count()
        ledger.count()
    assert Ledger(PRIVACY, file).epsilon == ledger.epsilon == epsilon(6, 8.0, 1e-5)
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_update_is_counted_before_it_is_shown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("polytempo_client.updates.ledger.privatised", crash)
    with pytest.raises(KeyboardInterrupt):
        Ledger(PRIVACY, file).release(a_task(), MODEL)
    assert Ledger(PRIVACY, file).updates == 1


def test_what_cannot_be_counted_does_not_leave(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    ledger = Ledger(PRIVACY, file)
    ledger.count()
    monkeypatch.setattr("polytempo_client.updates.ledger.write_bytes", full)
    with pytest.raises(UserError, match=r"cannot be counted.*does not leave: No space"):
        ledger.release(a_task(), MODEL)
    assert Ledger(PRIVACY, file).updates == ledger.updates == 1


def test_processes_that_share_the_file_share_the_count_and_the_limit(file: Path) -> None:
    limit = epsilon(3, 8.0, 1e-5)
    one, other = Ledger(PRIVACY, file, limit), Ledger(PRIVACY, file, limit)
    one.count()
    other.count()
    one.count()
    assert other.left == 1  # as far as it knows
    with pytest.raises(SpentError, match="3 updates have come to"):
        other.count()
    assert Ledger(PRIVACY, file).updates == 3


@pytest.mark.parametrize("kept", [True, False])
def test_no_more_leave_than_the_limit_lets(file: Path, kept: bool) -> None:
    allowed = updates_within(4.0, 8.0, 1e-5)
    ledger = Ledger(PRIVACY, file if kept else None, 4.0)
    for left in range(allowed, 0, -1):
        assert ledger.left == left
        ledger.count()
    with pytest.raises(SpentError, match="one more would exceed 4"):
        ledger.count()
    assert ledger.updates == allowed
    assert ledger.epsilon <= 4.0


def test_updates_with_other_noise_before_are_accounted_as_they_were(file: Path) -> None:
    Ledger(Privacy(1.0, 4.0), file).count()
    ledger = Ledger(PRIVACY, file)
    ledger.count()
    assert ledger.epsilon == pytest.approx(epsilon_at(math.sqrt((2 / 4) ** 2 + (2 / 8) ** 2), 1e-5))
    assert json.loads(file.read_text())["updates_by_noise"] == {"4.0": 1, "8.0": 1}


def test_a_loop_of_ones_own_gets_named_arrays_back() -> None:
    far = {name: array + 1000 for name, array in MODEL.items()}
    shown = Ledger(Privacy(0.5, 1e-6)).release(a_task(), far)
    assert {name: array.shape for name, array in shown.items()} == {"weight": (2, 2), "bias": (2,)}
    assert length(shown) == pytest.approx(0.5, rel=1e-3)


def test_a_loop_that_writes_into_the_arrays_it_was_given_is_clipped_all_the_same() -> None:
    task = a_task()
    for array in task.tensors.values():
        array += 1000
    shown = Ledger(Privacy(0.5, 1e-6)).release(task, task.tensors)
    assert length(shown) == pytest.approx(0.5, rel=1e-3)


def test_what_a_refresh_brought_is_what_an_update_counts_from() -> None:
    task = a_task()
    fresh = a_task().started
    for array in fresh.tensors.values():
        array += 7  # the body, as it came, is what counts
    task.news.append(fresh)
    task.refreshes()
    assert length(Ledger(Privacy(0.5, 1e-6)).release(task, MODEL)) < 1e-4


def test_tensors_that_the_task_does_not_train_stay_as_they_are() -> None:
    shown = Ledger(Privacy(0.5, 1.0)).release(a_task(trainable=["bias"]), {"bias": MODEL["bias"] + 1})
    assert (shown["weight"] == MODEL["weight"]).all()
    assert (shown["bias"] != MODEL["bias"]).all()


@pytest.mark.parametrize("trained", [{**MODEL, "scale": np.zeros(2)}, {**MODEL, "bias": np.zeros(3)}, {}])
def test_a_tensor_that_does_not_fit_is_an_error_and_not_counted(trained: dict[str, np.ndarray]) -> None:
    ledger = Ledger(PRIVACY)
    with pytest.raises(UserError, match="The update"):
        ledger.release(a_task(), trained)
    assert ledger.updates == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": 2, "updates_by_noise": {}}',
        '{"format": 1, "updates_by_noise": {"1.0": -3}}',
        '{"format": 1, "updates_by_noise": {"x": 3}}',
        '{"format": 1, "updates_by_noise": {"0.0": 3}}',
    ],
)
def test_a_damaged_ledger_is_an_error_and_no_new_beginning(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(UserError, match="damaged"):
        Ledger(PRIVACY, file)
    assert file.read_text() == text


def test_a_ledger_that_vanishes_stops_the_client_and_the_next_one(file: Path) -> None:
    ledger = Ledger(PRIVACY, file)
    ledger.count()
    file.unlink()
    for stopped in (ledger.count, lambda: Ledger(PRIVACY, file)):
        with pytest.raises(UserError, match="There is no ledger"):
            stopped()


def test_a_ledger_that_was_put_back_to_an_earlier_state_stops_the_client(file: Path) -> None:
    ledger, before = Ledger(PRIVACY, file), file.read_bytes()
    ledger.count()
    file.write_bytes(before)
    with pytest.raises(UserError, match="fewer updates than before"):
        ledger.count()


def test_a_ledger_is_begun_only_once(file: Path) -> None:
    with pytest.raises(UserError, match="exists: leave --new-ledger"):
        Ledger(PRIVACY, file, new=True)


def test_a_place_or_a_parameter_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="folder that is there"):
        Ledger(PRIVACY, tmp_path / "missing/ledger.json")
    with pytest.raises(UserError, match="folder that is there"):
        Ledger(PRIVACY, tmp_path)
    with pytest.raises(UserError, match="hides nothing"):
        Ledger(Privacy(1.0, 0.0))
    with pytest.raises(UserError, match="limit of epsilon"):
        Ledger(PRIVACY, limit=0.0)
