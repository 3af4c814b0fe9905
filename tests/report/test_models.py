"""The models of a finished run: as modules, and as files for plain PyTorch."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import polytempo
from polytempo.core.errors import UserError
from polytempo.report.run import Run
from polytempo.sim.experiment import make_experiment
from polytempo.sim.records import evaluation
from polytempo.sim.run import run_experiment
from polytempo.world.data import load_dataset
from polytempo.world.partitions import make_federation
from support.plugs import PulledPlugError, pulled_after

PERSONAL = {"clients": 4, "updates": 24, "partition": "dirichlet:0.3", "personal": True}
NORMED = """
from torch import nn
def net(inputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, inputs.classes))
"""


@pytest.fixture(scope="module")
def personal(tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    return polytempo.simulate("fedasync", out=out, **PERSONAL), out


def equal(one, other):
    one, other = (model.state_dict() if isinstance(model, nn.Module) else model for model in (one, other))
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("which", ["served", "own", "used"])
def test_every_kind_of_model_scores_what_the_run_says(personal, which):
    run, _ = personal
    federation = make_federation(load_dataset("digits", None), "dirichlet:0.3", 4, 0)
    for client in range(4):
        data, model = federation.client(client, 0), run.model(client, which)
        with torch.no_grad():
            found = model(torch.from_numpy(federation.dataset.x[data.test])).argmax(1).numpy()
        assert (found == data.y[data.test]).mean() == pytest.approx(run.final_per_client(which)[client])


def test_a_run_in_memory_one_that_was_kept_and_one_that_was_read_have_the_same_models(personal):
    kept, out = personal
    others = (polytempo.simulate("fedasync", **PERSONAL), Run.load(out))
    for which in ("served", "own", "used"):
        assert all(equal(kept.model(1, which), other.model(1, which)) for other in others)


def test_without_a_rule_a_client_uses_what_it_is_served():
    run = polytempo.simulate("fedasync", clients=4, updates=6)
    client = run.update_log[0]["client"]
    assert equal(run.model(client), run.model(client, "served"))
    assert not equal(run.model(client), run.model(client, "own"))


def test_a_client_that_never_trained_has_no_own_model():
    run = polytempo.simulate("fedasync", clients=4, updates=1)
    trained = run.update_log[0]["client"]
    assert isinstance(run.model(trained, "own"), nn.Module)
    with pytest.raises(UserError, match="has no own model"):
        run.model((trained + 1) % 4, "own")
    with pytest.raises(UserError, match="Did you mean 'served'"):
        run.model(0, "serve")


def test_exported_models_load_strictly_in_plain_pytorch(personal, tmp_path):
    run, _ = personal
    run.export(tmp_path / "models", "own")
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))
    index = json.loads((tmp_path / "models/index.json").read_text())
    assert [row["client"] for row in index["models"]] == [0, 1, 2, 3]
    assert (index["strategy"], index["seed"], index["which"]) == ("fedasync", 0, "own")
    for row in index["models"]:
        module.load_state_dict(load_file(tmp_path / "models" / row["file"]), strict=True)
        assert equal(module, run.model(row["client"], "own"))
    with pytest.raises(UserError, match="exists already"):
        run.export(tmp_path / "models")


def test_a_directory_that_was_read_imports_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(NORMED)
    run = polytempo.simulate("fedasync", model="own.py:net", clients=4, updates=6, batch_size=8, out="run")
    assert isinstance(run.model(0), nn.Sequential)
    (tmp_path / "own.py").write_text("raise SystemExit('imported')")
    read = Run.load("run")
    assert isinstance(read.model(0), dict)
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    assert read.model(0, module=module) is module
    assert not module.training
    read.export("models")
    module.load_state_dict(load_file("models/client-2.safetensors"), strict=True)
    with pytest.raises(UserError, match=r"expected 1\.bias of shape \(8,\), it is of shape \(9,\)"):
        read.model(0, module=nn.Sequential(nn.Flatten(), nn.Linear(64, 9)))


def test_a_run_that_goes_on_has_the_own_models_of_before(every_event, tmp_path):
    experiment = make_experiment(strategy="fedasync", **PERSONAL)
    with pytest.raises(PulledPlugError):
        run_experiment(experiment, tmp_path / "cut", pulled_after(12), checkpoint_seconds=0)
    run_experiment(experiment, tmp_path / "cut")
    run_experiment(experiment, tmp_path / "whole")
    for name in ("own_models", "used_models", "models"):
        cut, whole = (load_file(tmp_path / place / f"{name}.safetensors") for place in ("cut", "whole"))
        assert equal(cut, whole)


def test_models_that_take_too_much_room_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "KEPT_BYTES", 1_000)
    run = polytempo.simulate("fedasync", out=tmp_path / "run", **PERSONAL)
    assert isinstance(run.model(0, "served"), nn.Module)
    for which in ("own", "used"):
        with pytest.raises(UserError, match=f"did not keep the {which} models"):
            run.model(0, which)


def test_a_comparison_has_the_models_of_its_runs(tmp_path):
    comparison = polytempo.compare(["fedasync", "standalone"], seeds=1, clients=4, updates=6)
    assert equal(comparison.model("standalone", 1), comparison.runs[1].model(1))
    comparison.export(tmp_path / "models")
    assert len(list(tmp_path.glob("models/*-seed0/client-*.safetensors"))) == 8


def test_a_model_given_as_an_object_comes_back_as_one_of_its_kind(tmp_path):
    x, y = torch.randn(80, 3, generator=torch.Generator().manual_seed(0)), torch.arange(80) % 2
    run = polytempo.simulate("fedasync", data=(x, y), model=nn.Linear(3, 2), clients=4, updates=6, out=tmp_path / "run")
    assert isinstance(run.model(0), nn.Linear)
    read = Run.load(tmp_path / "run")
    assert set(read.model(0)) == {"weight", "bias"}
    assert equal(run.model(0), read.model(0, module=nn.Linear(3, 2)))
