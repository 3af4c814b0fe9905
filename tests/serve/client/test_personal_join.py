"""A client that joins keeps models of its own as its simulated twin does, also if it is killed on the way."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from polytempo.core.errors import UserError
from polytempo.core.state import digest
from polytempo.serve.client import join as join_module
from polytempo.serve.client.join import Trained, join
from polytempo.serve.client.own_data import make_join_settings
from polytempo.sim.experiment import make_experiment
from polytempo.sim.run import run_experiment
from polytempo.strategies.parts.tryout import Tryout
from polytempo_client.keeping.own_memory import OwnMemory, Remembered, memory_path
from polytempo_client.personal import rule as personal
from polytempo_client.personal.jury import Rows
from polytempo_client.personal.rule import ENOUGH_SOLO_TASKS, SOLO_TASKS, Beginning, ClientMemory, Score
from polytempo_client.protocol.wire_pb2 import Welcome
from polytempo_client.session.connection import Connection
from support.joining import LINEAR
from support.serving import Running, running

SLOW = {"parameters": {"mixing": 0.05}, "personal": True, "lr": 0.5, "seed": 3}
"""The shared model lags behind, so that the client keeps much of its own."""
UPDATES = 5


class Killed(BaseException):
    """The process is gone."""


def join_here(server: Running, updates: int = UPDATES, keep: Path | None = None, **given: Any) -> list[Trained]:
    trained: list[Trained] = []
    settings = make_join_settings(**{**LINEAR, **given})
    join(lambda: server.client(0, keep), settings, updates, trained.append)
    return trained


def reports(server: Running) -> list[Any]:
    journal = server.host.journal
    events = [event for _, event in journal.events(journal.snapshots()[0])]
    return [event.push for event in events if event.push is not None]


@pytest.fixture
def rehearsing(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """No served model is too bad for clients to rehearse with it. Of each rehearsal, whether its result was kept."""
    monkeypatch.setattr("polytempo_client.personal.rule.FAR_WORSE", math.inf)
    kept: list[bool] = []

    def seen(begun: Beginning, trained: np.ndarray, rows: Rows, score: Score) -> ClientMemory:
        memory = personal.remembered(begun, trained, rows, score)
        if begun.rehearses:
            kept.append(memory.own is trained)
        return memory

    monkeypatch.setattr("polytempo.learn.rules.jury.remembered", seen)
    return kept


# The twin.


@pytest.mark.usefixtures("rehearsing")
@pytest.mark.parametrize("strategy", ["fedasync", "concerto"])
def test_a_client_that_joins_ends_with_the_bits_of_its_simulated_twin(
    serve: Any, tmp_path: Path, strategy: str
) -> None:
    slow = SLOW if strategy == "fedasync" else {"parameters": {"rho": 0.05}, "lr": 0.5, "seed": 3}
    experiment = make_experiment(
        strategy=strategy, **LINEAR, **slow, clients=1, partition="iid", updates=UPDATES, batch_size=4
    )
    run_experiment(experiment, tmp_path / "run")
    models = load_file(tmp_path / "run/models.safetensors")
    number = int(models["client_model"][0])
    server = serve(strategy, clip=None, samples_cap=None, **slow)
    join_here(server, partition="iid", clients=1)
    served = server.host.service.schema.views(server.host.service.strategy.model_for(0))
    assert all(torch.equal(tensor, models[f"{number}.{name}"]) for name, tensor in served.items())
    pushed = reports(server)
    assert pushed[0].jury is None  # it had no model of its own yet
    assert all(push.jury is not None and push.jury.rows == pushed[1].jury.rows > 0 for push in pushed[1:])
    assert all(push.samples + push.jury.rows == 48 for push in pushed[1:])


def test_a_client_that_settles_for_its_own_model_trains_on_all_rows_as_its_twin_does(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polytempo.strategies.parts.personal.Tryout", _decided_for_solo)
    experiment = make_experiment(
        strategy="fedasync", **LINEAR, **SLOW, clients=1, partition="iid", updates=7, batch_size=4
    )
    run_experiment(experiment, tmp_path / "run")
    models = load_file(tmp_path / "run/models.safetensors")
    number = int(models["client_model"][0])
    server = serve("fedasync", clip=None, samples_cap=None, **SLOW)
    join_here(server, updates=7, partition="iid", clients=1)
    served = server.host.service.schema.views(server.host.service.strategy.model_for(0))
    assert all(torch.equal(tensor, models[f"{number}.{name}"]) for name, tensor in served.items())
    pushed = reports(server)
    held_out = 48 - pushed[0].samples
    assert [push.samples for push in pushed] == [48 - held_out] * 4 + [48] * 3
    # The old jurors judge it once more, before it is trained on them.
    assert [push.jury.rows if push.jury else 0 for push in pushed] == [0, *[held_out] * 4, 0, 0]


def _decided_for_solo(seed: int) -> Tryout:
    tryout = Tryout(seed)
    tryout.decided = "solo"
    return tryout


def test_what_is_handed_in_is_not_the_clients_own_model(serve: Any, tmp_path: Path) -> None:
    server = serve("fedasync", **SLOW)
    join_here(server, keep=tmp_path / "task")
    kept = remembered(server, tmp_path / "task")
    assert kept.memory is not None
    assert not np.array_equal(reports(server)[-1].weights.numpy(), kept.memory.own)


# Killed clients.


def remembered(server: Running, file: Path) -> Remembered:
    """What a client that starts with this file remembers."""
    with server.client(0) as client:
        client.wait_for_welcome(30)
        memory = OwnMemory(memory_path(file))
        memory.open(client._inbox.welcome)
    return memory.as_of(server.host.service.members[0].answered)


def before_training(patch: Callable[..., None], _: Path) -> None:
    patch(join_module, "_train", before=True)


def before_the_memory_is_written(patch: Callable[..., None], _: Path) -> None:
    patch(OwnMemory, "prepare", before=True)


def before_the_result_leaves(patch: Callable[..., None], _: Path) -> None:
    patch(OwnMemory, "prepare", before=False)


def after_the_reply(patch: Callable[..., None], _: Path) -> None:
    patch(Connection, "ask", before=False, only=lambda args: args[1].WhichOneof("kind") == "push")


MOMENTS = [before_training, before_the_memory_is_written, before_the_result_leaves, after_the_reply]


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Kill a client at its third call of a function."""

    def kill(owner: Any, name: str, before: bool, only: Callable[[Any], bool] = lambda _: True) -> None:
        real, calls = getattr(owner, name), iter(range(100))

        def call(*args: Any, **given: Any) -> Any:
            dies = only(args) and next(calls) == 2
            if dies and before:
                raise Killed
            result = real(*args, **given)
            if dies:
                raise Killed
            return result

        monkeypatch.setattr(owner, name, call)

    return kill


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("lost", [False, True], ids=["", "and the reply was lost"])
def test_a_client_that_was_killed_goes_on_to_the_same_bits(
    tmp_path: Path, rehearsing: list[bool], patch: Callable[..., None], moment: Callable[..., None], lost: bool
) -> None:
    whole = lived(tmp_path / "whole", lambda _: None)
    assert rehearsing == [False, True]  # in the third task, in which it will be killed, and in the fifth
    assert lived(tmp_path / "killed", lambda file: moment(patch, file), lost) == whole


def lived(directory: Path, prepare: Callable[[Path], None], lost: bool = False) -> tuple[str, str]:
    """The strategy and the client's memory after some updates of a client that may be killed once."""
    directory.mkdir()
    file = directory / "task"
    model = {"init": None, "model": LINEAR["model"], "data": LINEAR["data"], "steps": None, "batch_size": 4}
    with running(directory, **model, **SLOW) as server:
        prepare(file)
        try:
            join_here(server, UPDATES, file, shadow=True)
        except Killed:
            if lost:  # the client never saw what the server sent it last
                file.unlink()
            join_here(server, UPDATES - server.host.service.updates, file, shadow=True)
        assert server.host.service.updates == UPDATES
        kept = remembered(server, file)
        assert kept.rounds == UPDATES
        return digest(server.host.service.strategy.save_state()), digest(kept.memory, kept.alone)


def test_a_result_that_the_server_refuses_is_not_remembered(serve: Any, tmp_path: Path) -> None:
    server = serve("fedasync", norm_bound=1e-9, zero_bound=1e-9, **SLOW)
    with pytest.raises(UserError, match="refuses the updates"):
        join_here(server, keep=tmp_path / "task")
    assert remembered(server, tmp_path / "task") == Remembered()


def test_without_a_file_a_client_remembers_as_long_as_it_runs(serve: Any, tmp_path: Path) -> None:
    server = serve("fedasync", **SLOW)
    join_here(server, 2)
    join_here(server, 2)
    assert [push.jury is not None for push in reports(server)] == [False, True, False, True]


# Privacy.


def test_with_privacy_no_report_leaves_and_the_rule_works(serve: Any, tmp_path: Path) -> None:
    server = serve("fedasync", **SLOW)
    join_here(server, 3, tmp_path / "task", clip_norm=1.0, noise=0.1)
    assert [(push.jury, push.used, push.accuracy, push.answers) for push in reports(server)] == 3 * [
        (None, None, None, {})
    ]
    kept = remembered(server, tmp_path / "task").memory
    assert kept is not None
    assert not np.array_equal(kept.own, kept.average)


def test_a_shadow_and_privacy_exclude_each_other() -> None:
    with pytest.raises(UserError, match="with privacy only noisy updates leave"):
        make_join_settings(clip_norm=1.0, noise=0.1, shadow=True)


# The shadow.


@pytest.mark.parametrize("personal", [False, True])
def test_a_shadow_is_what_the_client_would_have_trained_alone(serve: Any, tmp_path: Path, personal: bool) -> None:
    experiment = make_experiment(
        strategy="standalone", **LINEAR, clients=1, partition="iid", updates=UPDATES, batch_size=4, lr=0.5, seed=3
    )
    run_experiment(experiment, tmp_path / "run")
    models = load_file(tmp_path / "run/models.safetensors")
    server = serve("fedasync", **{**SLOW, "personal": personal})
    join_here(server, keep=tmp_path / "task", shadow=True, partition="iid", clients=1)
    kept = remembered(server, tmp_path / "task")
    assert (kept.memory is None, kept.rounds) == (not personal, UPDATES)
    alone = server.host.service.schema.views(torch.from_numpy(kept.alone))
    number = int(models["client_model"][0])
    assert all(torch.equal(tensor, models[f"{number}.{name}"]) for name, tensor in alone.items())


def test_a_shadow_tells_the_operator_how_both_models_do(serve: Any) -> None:
    server = serve("fedasync", **SLOW)
    join_here(server, shadow=True)
    pushed = reports(server)
    assert pushed[0].used == pushed[0].alone == pushed[0].accuracy  # both begin with the initial model
    assert pushed[-1].used > pushed[-1].accuracy  # the shared model lags behind
    member = server.host.service.members[0]
    assert (member.used, member.alone) == (pushed[-1].used, pushed[-1].alone)


def test_a_memory_is_that_of_one_client_and_one_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, other = Welcome(client=0, names=["w"], seed=1), Welcome(client=1, names=["w"], seed=1)
    memory = OwnMemory(tmp_path / "memory")
    memory.open(first)
    memory.prepare(7, Remembered(None, np.ones(2, np.float32), 3))
    again = OwnMemory(tmp_path / "memory")
    again.open(first)
    assert again.as_of(6) == Remembered()
    assert again.as_of(7).rounds == 3
    again.open(other)
    assert again.as_of(7) == Remembered()
    assert caplog.messages == ["memory unreadable"]
    back = OwnMemory(tmp_path / "memory.aside-1")
    back.open(first)
    assert back.as_of(7).rounds == 3


def test_a_soloist_that_was_killed_is_still_one(tmp_path: Path) -> None:
    welcome, model = Welcome(client=0, names=["w"], seed=1), np.ones(2, np.float32)
    memory = OwnMemory(tmp_path / "memory")
    memory.open(welcome)
    memory.prepare(7, Remembered(ClientMemory(model, model, numbers={SOLO_TASKS: ENOUGH_SOLO_TASKS})))
    again = OwnMemory(tmp_path / "memory")
    again.open(welcome)
    kept = again.as_of(7).memory
    assert kept is not None
    assert kept.is_soloist
