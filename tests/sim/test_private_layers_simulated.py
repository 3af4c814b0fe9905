"""Simulated clients with private layers: what travels, what is scored, and that nothing is lost."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from polytempo import simulate
from polytempo.core.errors import UserError
from polytempo.core.orders import Work
from polytempo.core.state import digest, load, save
from polytempo.report.run import Run
from polytempo.sim.compression import Compression
from polytempo.sim.directory import MODELS
from polytempo.sim.experiment import make_experiment, read_experiment
from polytempo.sim.memories import Memories
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.run import run_experiment
from polytempo.sim.simulator import Simulator
from polytempo.sim.uploads import Uploads
from polytempo.strategies.settings import StrategySettings
from polytempo.testing import simulator
from polytempo.world.data import load_dataset
from polytempo.world.partitions import make_federation
from support.plugs import PulledPlugError

BODY, HEAD = 4 * 5 + 5, 5 * 3 + 3
WORK = Work(steps=5, epochs=None, batch_size=4, lr=0.1)
RESTLESS = (
    'speed = "uniform:3"\n[network]\nup = 50.0\ndown = 90.0\nlatency = 0.25\n'
    "[dropout]\nprobability = 0.3\naway = 7.7\n[[late]]\nclients = 0.4\nby = 20.0\n"
)
DIVIDED = [
    "fedper",
    "fedrep",
    "lg-fedavg",
    "concerto",
    "ditto",
    "apfl",
    "fedala",
    "echopfl",
    "support.serving:Refresher",
]
"""What has no private layers of its own gets a private head."""


def divided(method: str, **more: Any) -> Simulator:
    strategy = StrategySettings(strategy=method).make()
    return simulator(strategy, work=WORK, personal_layers=strategy.personal_layers or ("head",), **more)


def restless(method: str, tmp_path: Path, workers: int = 2) -> Simulator:
    (tmp_path / "devices.toml").write_text(RESTLESS)
    devices = str(tmp_path / "devices.toml")
    return divided(method, clients=5, devices=devices, stop=Stop(updates=24), workers=workers)


def state_of(sim: Simulator) -> str:
    saved = sim.save_state()
    return digest(saved["strategy"], saved["personal"], sim.history.evaluations, sim.history.updates)


# What travels.


@pytest.mark.parametrize(("method", "floats"), [("fedper", BODY), ("fedrep", BODY), ("lg-fedavg", HEAD)])
def test_only_shared_layers_are_counted_as_bytes(method: str, floats: int) -> None:
    sim = divided(method)
    sim.run()
    assert sim.traffic.bytes_up == 4 * floats * 12
    assert sim.traffic.bytes_down == 4 * floats * sim.traffic.downloads
    assert sim.strategy.model_for(0).numel() == floats


def test_encoded_updates_are_those_of_the_shared_layers() -> None:
    experiment = make_experiment(strategy="fedavg", upload="fp16", download="fp16")
    compression: Compression = experiment.behaviour.uploads(3, 0, travels=True).compression
    sim = divided("fedper", uploads=Uploads(compression=compression))
    sim.run()
    assert sim.traffic.bytes_up == compression.update_bytes(BODY) * 12
    assert sim.traffic.bytes_down == 2 * BODY * sim.traffic.downloads


# What is scored.


def test_a_client_is_scored_with_its_own_layers_and_before_it_trains_with_the_initial_ones() -> None:
    sim = divided("fedper", partition="dirichlet:0.3")
    first = sim.personal.whole(0, sim.strategy.model_for(0))
    assert all(torch.equal(sim.personal.whole(client, sim.strategy.model_for(client)), first) for client in range(3))
    sim.run()
    served, memories = sim.strategy.model_for(0), sim.personal.memories
    privates = [memories[client] for client in range(3)]
    assert len({digest(memory) for memory in privates}) == 3
    last = sim.history.evaluations[-1]
    for client, memory in enumerate(privates):
        assert memory is not None
        whole = torch.cat([served, torch.from_numpy(memory.private)])
        data = sim.federation.client(client, 0)
        right = sim.learner.scorer.metric(whole, sim._x, torch.from_numpy(data.y[data.test]), data.test)
        assert last["per_client"][client] == last["per_client_used"][client] == pytest.approx(right.mean())


def test_alone_it_makes_no_difference_which_layers_are_private() -> None:
    head, body = (
        simulator(StrategySettings(strategy="standalone").make(), work=WORK, personal_layers=(layer,))
        for layer in ("head", "body")
    )
    for sim in (head, body):
        sim.run()
    for one, other in zip(head.history.evaluations, body.history.evaluations, strict=True):
        assert np.array_equal(one["per_client"], other["per_client"])


# Nothing is lost.


@pytest.mark.parametrize("method", DIVIDED)
def test_any_number_of_workers_gives_the_same_bits(method: str, tmp_path: Path) -> None:
    states = []
    for workers in (1, 3):
        sim = restless(method, tmp_path, workers)
        sim.run()
        states.append(state_of(sim))
    assert states[0] == states[1]


@pytest.mark.parametrize("method", DIVIDED)
def test_a_run_cut_at_any_event_ends_with_the_same_bits(method: str, tmp_path: Path) -> None:
    whole, events = restless(method, tmp_path), []
    whole.run(lambda: events.append(whole.now))
    for cut in range(1, len(events), max(1, len(events) // 4)):
        sim, count = restless(method, tmp_path), []

        def stop_at_the_cut(sim: Simulator = sim, count: list[None] = count, cut: int = cut) -> None:
            count.append(None)
            if len(count) == cut:
                save(sim.save_state(), tmp_path / "state")
                raise PulledPlugError

        with pytest.raises(PulledPlugError):
            sim.run(stop_at_the_cut)
        resumed = restless(method, tmp_path)
        for name in ("evaluations", "updates", "marks"):
            getattr(resumed.history, name).extend(getattr(sim.history, name))
        resumed.load_state(load(tmp_path / "state"))
        resumed.run()
        assert state_of(resumed) == state_of(whole), cut


def test_private_layers_in_files_are_the_same(tmp_path: Path) -> None:
    held, spilled = restless("fedrep", tmp_path), restless("fedrep", tmp_path)
    spilled.personal.memories = Memories(tmp_path / "memories", held_bytes=1)
    for sim in (held, spilled):
        sim.run()
    assert any((tmp_path / "memories").iterdir())
    assert held.history.evaluations[-1]["accuracy_used"] == spilled.history.evaluations[-1]["accuracy_used"]
    for client in range(5):
        assert digest(held.personal.memories[client]) == digest(spilled.personal.memories[client])


# A run.


SMALL: dict[str, Any] = {"data": "digits", "clients": 3, "partition": "iid", "steps": 3, "updates": 6, "workers": 1}


def test_a_run_leaves_shared_models_and_whole_ones(tmp_path: Path) -> None:
    run = simulate("fedper", **SMALL, out=tmp_path / "run")
    served, used, own = (load_file(tmp_path / "run" / MODELS[which]) for which in ("served", "used", "own"))
    assert sorted(served) == ["0.1.bias", "0.1.weight", "client_model", "clients"]
    names = [f"{client}.{layer}.{part}" for client in range(3) for layer in (1, 3) for part in ("bias", "weight")]
    assert sorted(used) == sorted(own) == [*names, "client_model", "clients"]
    assert all(torch.equal(used[f"{client}.1.weight"], served["0.1.weight"]) for client in range(3))
    assert not torch.equal(used["0.3.weight"], used["1.3.weight"])
    federation = make_federation(load_dataset("digits", None), "iid", 3, 0)
    for client in range(3):
        data, model = federation.client(client, 0), Run.load(tmp_path / "run").model(client)
        assert isinstance(model, torch.nn.Module)
        right = model(torch.from_numpy(federation.dataset.x[data.test])).argmax(1).numpy() == data.y[data.test]
        assert right.mean() == pytest.approx(run.final_per_client("used")[client])


def test_the_setting_wins_over_the_methods_own_layers_and_files_may_hold_it(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('strategy = "fedper"\npersonal_layers = ["body"]\n')
    experiment = read_experiment(tmp_path / "e.toml", {}, SMALL)
    assert experiment.personal_layers == ("body",)
    assert run_experiment(experiment).result["bytes_up"] == 4 * 1010 * 6
    words = make_experiment(strategy="fedavg", personal_layers="1, 3.bias")
    assert words.personal_layers == ("1", "3.bias")


def test_the_settings_of_a_run_say_which_layers_are_private() -> None:
    run = run_experiment(make_experiment(strategy="fedper", **SMALL))
    assert run.config["resolved"]["personal_layers"] == ("head",)
    assert "personal_layers" not in run.config, "runs of before are known by their settings"
    given = run_experiment(make_experiment(strategy="fedavg", personal_layers="1", **SMALL)).config
    assert given["personal_layers"] == ["1"]


def test_initial_weights_are_those_of_the_whole_model(tmp_path: Path) -> None:
    np.save(tmp_path / "init.npy", np.full(7510, 0.25, np.float32))
    settings = {**SMALL, "init": tmp_path / "init.npy", "updates": 3, "participation": "k:1:round-robin"}
    run_experiment(make_experiment(strategy="fedper", **{**settings, "lr": 1e-30}), tmp_path / "run")
    used = load_file(tmp_path / "run" / MODELS["used"])
    assert (used["0.1.bias"][0], used["2.3.bias"][0]) == (0.25, 0.25)


def test_a_server_without_the_private_layers_cannot_use_proxy_sets() -> None:
    with pytest.raises(UserError, match=r"Leave out --proxies or --personal-layers"):
        run_experiment(
            make_experiment(strategy="cdfl", personal_layers=("head",), **{**SMALL, "partition": "rotations:2"})
        )
