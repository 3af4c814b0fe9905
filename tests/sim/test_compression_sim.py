"""Compression in the simulator: the same bits as in service, and bytes that are counted and take time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from polytempo.core.errors import UserError
from polytempo.core.state import digest, load, save
from polytempo.serve.client.join import join
from polytempo.serve.client.own_data import make_join_settings
from polytempo.sim.compression import Compression
from polytempo.sim.experiment import make_experiment
from polytempo.sim.records.evaluation import Stop
from polytempo.sim.run import run_experiment
from polytempo.sim.simulator import Simulator
from polytempo.sim.uploads import Uploads
from polytempo.strategies import Strategy
from polytempo.strategies.methods.fedasync import FedAsync
from polytempo.testing import simulator
from polytempo_client.model.encodings import Encodings, parse_encodings
from support.bustle import DEVICES, BusyFedAsync
from support.joining import LINEAR
from support.serving import running

ENCODINGS = [("fp16", ""), ("fp16", "fp16"), ("topk:0.2", ""), ("topk:0.2", "fp16")]


def build(strategy: Strategy, upload: str, download: str = "", **given: Any) -> Simulator:
    compression = Compression(*parse_encodings(upload, download))
    return simulator(strategy, stop=Stop(updates=25), uploads=Uploads(compression=compression), **given)


@pytest.mark.parametrize(("upload", "download"), ENCODINGS)
def test_a_served_client_ends_with_the_bits_of_its_simulated_twin(tmp_path: Path, upload: str, download: str) -> None:
    common = {**LINEAR, "partition": "iid"}
    method = {"strategy": "fedasync", "seed": 3, "batch_size": 4, "lr": "step:0.1:0.5:1"}
    experiment = make_experiment(**common, **method, clients=1, updates=8, upload=upload, download=download)
    run_experiment(experiment, tmp_path / "run")
    simulated = load_file(tmp_path / "run/models.safetensors")
    served = {"init": None, "steps": None, "model": LINEAR["model"], "data": LINEAR["data"]}
    with running(tmp_path, **{**method, **served}) as server:
        encodings, settings = Encodings(upload, download), make_join_settings(**common, clients=1)
        join(lambda: server.client(0, encodings=encodings), settings, updates=8)
        service = server.host.service
        models = service.schema.views(service.strategy.model_for(0))
    assert service.updates == 8
    assert all(torch.equal(tensor, simulated[f"0.{name}"]) for name, tensor in models.items())


@pytest.mark.parametrize(("upload", "download"), ENCODINGS)
def test_a_run_cut_at_any_event_ends_bit_identical(tmp_path: Path, upload: str, download: str) -> None:
    devices = tmp_path / "devices.toml"
    devices.write_text(DEVICES)

    def begun(workers: int = 1) -> Simulator:
        return build(BusyFedAsync(), upload, download, clients=6, devices=str(devices), workers=workers)

    whole, states = begun(), []

    def keep() -> None:
        save(whole.save_state(), tmp_path / f"{len(states)}")
        states.append(tmp_path / f"{len(states)}")

    whole.run(keep)
    for state in states[:: max(1, len(states) // 8)]:
        resumed = begun(workers=2)
        resumed.load_state(load(state))
        resumed.run()
        assert digest(resumed.strategy.save_state()) == digest(whole.strategy.save_state())
        assert digest(resumed.uploads.compression.residuals) == digest(whole.uploads.compression.residuals)


def test_what_clients_hold_back_is_part_of_what_they_made() -> None:
    sim = build(FedAsync(), "topk:0.1", clients=3)
    sim.run()
    residuals = sim.uploads.compression.residuals
    assert set(residuals) == {0, 1, 2}
    assert all(float(residual.norm()) > 0 for residual in residuals.values())


def test_encoded_bytes_are_counted_and_take_less_time(tmp_path: Path) -> None:
    devices = tmp_path / "devices.toml"
    devices.write_text("jitter = 0.0\n[network]\nup = 10.0\ndown = 10.0\n")
    size = 15
    plain, small = (
        build(FedAsync(), *words, clients=1, devices=str(devices)) for words in (("", ""), ("fp16", "fp16"))
    )
    for sim in (plain, small):
        sim.run()
    assert plain.traffic.bytes_up == 25 * 4 * size
    assert small.traffic.bytes_up == 25 * (2 * size + 4)
    assert small.traffic.bytes_down == plain.traffic.bytes_down / 2
    seconds = [sim.history.updates[0]["time"] for sim in (plain, small)]
    assert seconds[0] - seconds[1] == pytest.approx((4 * size - (2 * size + 4)) / 10 + 2 * size / 10)


def test_where_models_stay_with_their_clients_nothing_is_encoded() -> None:
    digests = {
        run_experiment(
            make_experiment(strategy="standalone", partition="iid", clients=3, updates=6, upload=upload)
        ).result["digest"]
        for upload in ("", "topk:0.01")
    }
    assert len(digests) == 1


@pytest.mark.parametrize(("upload", "download"), [("zip", ""), ("", "fp16"), ("topk:0.1", "topk:0.1")])
def test_encodings_that_cannot_be_are_an_error_before_the_run(upload: str, download: str) -> None:
    with pytest.raises(UserError, match="Expected fp16"):
        make_experiment(strategy="fedasync", upload=upload, download=download).check()
