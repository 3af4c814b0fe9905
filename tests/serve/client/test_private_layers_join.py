"""A client that joins keeps its private layers as its simulated twin does, also if it is killed on the way."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from polytempo.core.errors import UserError
from polytempo.core.state import digest
from polytempo.serve.client.join import Trained, join
from polytempo.serve.client.own_data import make_join_settings
from polytempo.sim.experiment import make_experiment
from polytempo.sim.run import run_experiment
from polytempo_client.keeping.own_memory import OwnMemory, Remembered, memory_path
from polytempo_client.protocol.wire_pb2 import Shape, Welcome
from polytempo_client.session.connection import Connection
from support.serving import Running, running

UPDATES = 5
OWN = {"model": "polytempo.testing.building:two_layers", "data": "support.joining:data", "engine": "eager"}
WORLD: dict[str, Any] = {"lr": 0.5, "seed": 3, "batch_size": 4}
METHODS = [
    ("fedper", {}, ("head",)),
    ("fedrep", {"steps": 7}, ("head",)),
    ("lg-fedavg", {}, ("body",)),
    ("fedasync", {"personal_layers": ("2.bias", "0"), "personal": True}, ("2.bias", "0")),
    ("ditto", {"personal_layers": ("head",)}, ("head",)),
]


class Killed(BaseException):
    """The process is gone."""


def join_here(server: Running, updates: int = UPDATES, keep: Path | None = None, **given: Any) -> list[Trained]:
    trained: list[Trained] = []
    settings = make_join_settings(**{**OWN, **given})
    join(lambda: server.client(0, keep), settings, updates, trained.append)
    return trained


def serving(**given: Any) -> dict[str, Any]:
    return {"init": None, "model": OWN["model"], "data": OWN["data"], "steps": None, **WORLD, **given}


def memory_of(server: Running, file: Path, updates: int) -> Remembered:
    """What the client remembers once so many of its results are taken."""
    schema = server.host.service.schema
    memory = OwnMemory(memory_path(file))
    shapes = [Shape(sizes=shape) for shape in schema.shapes]
    memory.open(Welcome(client=0, seed=WORLD["seed"], names=schema.names, shapes=shapes))
    return memory.as_of(updates)


@pytest.mark.parametrize(("strategy", "more", "private"), METHODS)
def test_a_client_that_joins_ends_with_the_bits_of_its_simulated_twin(
    serve: Any, tmp_path: Path, strategy: str, more: dict[str, Any], private: tuple[str, ...]
) -> None:
    given = {**WORLD, **more}
    experiment = make_experiment(
        strategy=strategy, **OWN, **given, clients=1, partition="iid", updates=UPDATES, eval_every=1
    )
    simulated = run_experiment(experiment, tmp_path / "run")
    models = load_file(tmp_path / "run/models.safetensors")
    server = serve(strategy, clip=None, samples_cap=None, **serving(**more))
    trained = join_here(server, partition="iid", clients=1, personal_layers=private)
    service = server.host.service
    served = service.schema.views(service.strategy.model_for(0))
    assert {f"0.{name}" for name in served} == {name for name in models if "." in name}
    assert all(torch.equal(tensor, models[f"0.{name}"]) for name, tensor in served.items())
    scored = [row["accuracy"] for row in simulated.history.evaluations]
    assert [one.accuracy for one in trained] == pytest.approx(scored[:UPDATES]), "with its own layers"


@pytest.mark.parametrize("push", [0, 3])
@pytest.mark.parametrize("before", [False, True])
def test_a_client_that_was_killed_goes_on_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, push: int, before: bool
) -> None:
    whole = lived(tmp_path / "whole")
    real, calls = Connection.ask, iter(range(1000))

    def ask(*args: Any, **given: Any) -> Any:
        dies = args[1].WhichOneof("kind") == "push" and next(calls) == push
        if dies and before:
            raise Killed
        reply = real(*args, **given)
        if dies:
            raise Killed
        return reply

    monkeypatch.setattr(Connection, "ask", ask)
    assert lived(tmp_path / "killed") == whole


def lived(directory: Path) -> tuple[str, str]:
    directory.mkdir()
    file = directory / "task"
    with running(directory, "fedrep", **serving(steps=7)) as server:
        try:
            join_here(server, UPDATES, file, personal_layers="head")
        except Killed:
            join_here(server, UPDATES - server.host.service.updates, file, personal_layers="head")
        assert server.host.service.updates == UPDATES
        return digest(server.host.service.strategy.save_state()), digest(memory_of(server, file, UPDATES).memory)


def test_a_client_that_keeps_other_layers_than_the_server_expects_is_told(serve: Any) -> None:
    server = serve("fedper", **serving())
    with pytest.raises(UserError, match=r"'2\.weight' has shape \[3, 5\], the server's is missing.*--personal-layers"):
        join_here(server)
    with pytest.raises(UserError, match=r"'2\.weight' has shape.*--personal-layers"):
        join_here(server, personal_layers="body")


def test_a_memory_of_other_private_layers_is_an_error(serve: Any, tmp_path: Path) -> None:
    server, file = serve("fedper", **serving()), tmp_path / "task"
    join_here(server, 1, file, personal_layers="head")
    model = "serve.client.test_private_layers_join:larger"
    with pytest.raises(UserError, match="remembers 18 numbers of private layers, and the model has 24"):
        join_here(server, 1, file, personal_layers="head", model=model)


def larger(_: object) -> nn.Module:
    """Its body is that of ``two_layers``."""
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4))


def test_a_shadow_is_trained_on_the_whole_model(tmp_path: Path) -> None:
    shadows = []
    for strategy, more in (("fedper", {"personal_layers": "head"}), ("fedavg", {})):
        directory = tmp_path / strategy
        directory.mkdir()
        with running(directory, strategy, **serving()) as server:
            join_here(server, 2, directory / "task", shadow=True, **more)
            shadows.append(memory_of(server, directory / "task", 2).alone)
    assert shadows[0] is not None
    assert digest(shadows[0]) == digest(shadows[1])
