"""Settings as Python objects: a run by objects is a run by names, and what is no such object is refused in words."""

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from polytempo import simulate
from polytempo.core.errors import UserError
from polytempo.methods import make_strategy
from polytempo.sim.experiment import make_experiment
from polytempo.sim.run import run_experiment
from polytempo.strategies.methods.fedasync import FedAsync
from polytempo.strategies.parts.robust import Robust
from polytempo.world.data import load_dataset
from polytempo.world.partitions import make_federation
from support.plugs import PulledPlugError, pulled_after

DIGITS = load_dataset("digits")
ARRAYS = (DIGITS.x, DIGITS.y)
SMALL = {"clients": 4, "updates": 12, "seed": 1}


def perceptron(inputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, inputs.classes))


def smoothed(outputs, labels):
    return F.cross_entropy(outputs, labels, label_smoothing=0.1)


def filled(value):
    module = nn.Linear(64, 10)
    nn.init.constant_(module.weight, value)
    return module


def in_top_two(outputs, labels):
    return (outputs.topk(2).indices == labels[:, None]).any(1).float()


@cache
def by_name():
    return simulate("fedasync", **SMALL).digest


@pytest.mark.parametrize(
    "given",
    [
        {"data": ARRAYS},
        {"data": tuple(map(torch.from_numpy, ARRAYS))},
        {"data": TensorDataset(*map(torch.from_numpy, ARRAYS))},
        {"data": DIGITS},
        {"data": (DIGITS.x, DIGITS.y.astype(str))},
        {"data": (DIGITS.x[:1000], DIGITS.y[:1000], DIGITS.x[1000:], DIGITS.y[1000:])},
        {"model": perceptron},
        {"model": lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10))},
        {"loss": F.cross_entropy},
        {"strategy": FedAsync},
        {"strategy": make_strategy("fedasync", {})},
    ],
    ids=[
        "arrays",
        "tensors",
        "torch-data-set",
        "data-set",
        "words",
        "test-part",
        "factory",
        "lambda",
        "loss",
        "class",
        "instance",
    ],
)
def test_a_run_by_objects_has_the_bits_of_the_run_by_names(given):
    assert simulate(**{"strategy": "fedasync", **given, **SMALL}).digest == by_name()


def test_devices_and_partition_as_objects_are_those_by_name():
    rows = [np.concatenate(make_federation(DIGITS, "iid", 4, 1).client(client)[:2]) for client in range(4)]
    pairs = [tuple(make_federation(DIGITS, "iid", 4, 1).client(client)[:2]) for client in range(4)]
    run = simulate("fedasync", partition="iid", devices="homogeneous", **SMALL)
    assert simulate("fedasync", partition=pairs, devices=[1.0] * 4, **SMALL).digest == run.digest
    assert simulate("fedasync", partition=rows, devices="homogeneous", **SMALL).digest == run.digest


def test_a_module_begins_with_the_weights_that_it_has():
    module = perceptron(DIGITS)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    digests = [simulate("fedasync", model=module, **{**SMALL, "seed": seed}).digest for seed in (1, 1, 2)]
    assert digests[0] == digests[1] != digests[2]
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_an_instance_of_a_strategy_is_not_changed_by_a_run():
    strategy = make_strategy("fedasync", {"mixing": 0.3})
    run = simulate(strategy, **SMALL)
    assert run.digest == simulate("fedasync", parameters={"mixing": 0.3}, **SMALL).digest
    assert run.config["strategy"] == "fedasync"
    assert not hasattr(strategy, "setting")


def test_loss_and_metric_may_be_functions():
    run = simulate("fedasync", loss=smoothed, metric=in_top_two, **SMALL)
    assert run.accuracy > simulate("fedasync", loss=smoothed, **SMALL).accuracy
    assert run.config["metric"].startswith("in_top_two #")


def test_clients_of_a_dict_keep_what_is_theirs():
    each = {name: (DIGITS.x[i::3], DIGITS.y[i::3]) for i, name in enumerate(("zoe", "adam", "mia"))}
    experiment = make_experiment(strategy="fedasync", data=each)
    federation = make_federation(experiment.own("data"), experiment.partition, 3, 0)
    assert experiment.partition == "natural"
    for client in range(3):
        mine = np.concatenate(federation.client(client)[:2])
        assert sorted(experiment.own("data").x[mine].sum((1, 2, 3))) == sorted(DIGITS.x[client::3].sum((1, 2, 3)))
    assert simulate("fedasync", data=each, updates=6).config["clients"] == 3


def test_clients_of_a_dict_keep_their_own_test_samples():
    each = {i: (DIGITS.x[i::4], DIGITS.y[i::4], DIGITS.x[2 + i :: 4], DIGITS.y[2 + i :: 4]) for i in range(2)}
    run = simulate("fedasync", data=each, updates=4)
    assert np.diff(run.used.offsets).tolist() == [len(DIGITS.x[2::4]), len(DIGITS.x[3::4])]


def test_a_function_deals_rows_out():
    def halves(labels, clients, rng):
        return np.array_split(rng.permutation(len(labels)), clients)

    one, same, other = (simulate("fedasync", partition=halves, **{**SMALL, "seed": seed}) for seed in (1, 1, 2))
    assert one.digest == same.digest != other.digest
    assert one.config["objects"]["partition"]["type"] == "function halves"


def test_the_number_of_clients_is_that_of_the_devices_where_nothing_else_says_it():
    assert simulate("fedasync", devices=[1, 2, 3], updates=3, partition="iid").config["clients"] == 3
    with pytest.raises(UserError, match="devices has the seconds of 3 clients"):
        simulate("fedasync", devices=[1, 2, 3], clients=4)


class Own(FedAsync):
    """FedAsync under a name of one's own."""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"data": 5}, "data is int: this is no kind of data. Expected a name, (x, y)"),
        ({"data": DIGITS.x}, "data is numpy ndarray of float32 with shape (1797, 1, 8, 8): this is no kind"),
        ({"data": (DIGITS.x, DIGITS.y[:5])}, "x has shape (1797, 1, 8, 8) and y (5,). Expected one label per sample."),
        ({"data": (np.array([["secret"]]), [1])}, "x holds <U6. Expected numbers."),
        ({"data": {}}, "data is dict of 0: there are no clients in it"),
        ({"data": {"a": (DIGITS.x, DIGITS.y), "b": 7}}, "client 'b' has int: this is no kind of data"),
        (
            {"data": {1: ARRAYS, 2: (DIGITS.x[:, 0], DIGITS.y)}},
            "several shapes: (1, 8, 8) of 1, (8, 8) of 2. Expected one",
        ),
        ({"data": {1: ARRAYS * 2, 2: ARRAYS}}, "client 2 has no test samples, and others have some"),
        ({"data": ([[0.5], [1.0]], [0, 1]), "vocabulary": 5}, "whole numbers from 0 to 4"),
        (
            {"data": ([[1.0, 2.0], [3.0]], [0, 1])},
            "x is list of 2 (list of 2 (float, float), list of 1 (float)).",
        ),
        ({"data": (DIGITS.x[:, :0], DIGITS.y)}, "x has shape (1797, 0, 8, 8), not samples x features"),
        ({"data": (DIGITS.x, np.eye(10)[DIGITS.y])}, "y has shape (1797, 10), not one label per sample (for more, set"),
        ({"data": (DIGITS.x[:2], ["a", None])}, "y lacks 1 of 2 labels. Expected one per sample"),
        ({"data": (DIGITS.x[:2], [1.0, float("nan")])}, "y lacks 1 of 2 labels. Expected one per sample"),
        ({"data": (DIGITS.x[:2], np.array(["a", 1], object))}, "y has labels of type int, str. Expected numbers only"),
        (
            {"data": (torch.eye(3).to_sparse(), [0, 1, 0])},
            "x is torch Tensor of float32 with shape (3, 3).",
        ),
        ({"data": (DIGITS.x, 0 * DIGITS.y)}, "all labels are alike. Expected at least two classes"),
        (
            {"data": (np.ma.masked_less(DIGITS.x, 0), DIGITS.y)},
            "x is numpy MaskedArray of float32 with shape (1797, 1, 8, 8)",
        ),
        ({"data": dict}, "data is class dict: this is no kind of data"),
        (
            {"data": {"a": ARRAYS, "b": (DIGITS.x[:1], [0])}},
            "client 'b' has too few samples (1). Expected at least 2",
        ),
        (
            {"data": {"a": ARRAYS, "b": (DIGITS.x, DIGITS.y.astype(str))}},
            "several types: int64 of 'a', <U21 of 'b'. Expected",
        ),
        ({"data": {"train": ARRAYS, "test": ARRAYS}}, "its keys are train, test. Expected one for each client."),
        ({"data": ARRAYS, "label": "y"}, "label names a column, and there are none. Expected a frame, or no label."),
        ({"data": [(1, 2, 3)] * 3}, "data is list of 3 (tuple of 3 (int, int, int)"),
        ({"label": "y"}, "label is about data that are given as an object, and data is None"),
        ({"model": 5}, "model is int. Expected a name, an nn.Module"),
        ({"model": nn.Linear}, "model is class Linear, which fails (TypeError: "),
        (
            {"model": lambda inputs: None},
            "model is function <lambda>, which gives NoneType. Expected a function of Inputs",
        ),
        ({"model": lambda inputs: 1 / 0}, "model is function <lambda>, which fails (ZeroDivisionError: "),
        ({"model": nn.Flatten()}, "model has no parameters"),
        ({"model": nn.Linear(64, 10).double()}, "model trains weight as float64. Expected float32"),
        ({"model": nn.LazyLinear(10)}, "model has no shape yet (weight)"),
        ({"model": filled(float("nan"))}, "model has NaN or Inf in weight"),
        ({"loss": np.zeros(3)}, "loss is numpy ndarray of float64 with shape (3,). Expected an import path"),
        ({"metric": 3}, "metric is int. Expected a name or an import path, a Metric"),
        ({"metric": lambda outputs, labels: -outputs.amax(1)}, "The metric lambda gives -"),
        ({"metric": lambda outputs, labels: 7 + outputs.amax(1)}, "for a sample. Expected shares from 0 to 1."),
        ({"partition": 3}, "partition is int. Expected a name"),
        ({"partition": []}, "partition is list of 0. Expected a name"),
        ({"partition": [[0, 1], [1, 2]]}, "partition gives row 1 out more than once"),
        ({"partition": [[0, 1], [2, 9999]]}, "partition names row 9999. The data set has rows 0 to 1796"),
        ({"partition": [[0.5]]}, "partition gives client 0 list of 1 (float)"),
        ({"partition": [([0, 1], [2]), [3, 4]]}, "pairs of train and test rows for some clients only"),
        ({"partition": [([0, 1], [])]}, "partition gives client 0 2 train and 0 test rows"),
        ({"partition": [[0, 1]], "clients": 2}, "2 clients were asked for, but partition has 1"),
        ({"partition": lambda labels: []}, "The function given as partition failed: TypeError"),
        ({"devices": {"a": 1}}, "devices is dict of 1 (the first: int). Expected a name, a file, or a list"),
        ({"devices": [1.0, -1.0]}, "seconds per step that are not above 0"),
        ({"strategy": 5}, "strategy is int. Expected a name, or a class derived from Strategy"),
        ({"strategy": Robust(FedAsync(), 1.0, None)}, "strategy is a polytempo Robust around another"),
        ({"strategy": FedAsync(), "parameters": {"mixing": 1}}, "strategy is an instance, which has its parameters"),
        ({"clients": np.zeros(3)}, "got numpy ndarray of float64 with shape (3,)"),
    ],
)
def test_what_is_no_such_object_is_named_with_type_shape_and_what_was_expected(given, message):
    with pytest.raises(UserError) as raised:
        simulate(**{"strategy": "fedasync", **given})
    assert message in str(raised.value)
    assert "secret" not in str(raised.value)


def test_a_run_of_objects_goes_on_from_the_same_objects_only(tmp_path):
    given = {"data": ARRAYS, "model": perceptron, "strategy": Own}
    simulate(**given, out=tmp_path, **SMALL)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["objects"]["data"] == {
        "type": "tuple",
        "x": "float32 (1797, 1, 8, 8)",
        "y": "int64 (1797,)",
        "digest": config["objects"]["data"]["digest"],
    }
    assert config["data"] == f"arrays 1797x1x8x8 #{config['objects']['data']['digest'][:8]}"
    assert config["resume"] == "from Python only, with the same objects: data, model, strategy"
    again = simulate(**given, out=tmp_path, **SMALL)
    assert again.config["objects"] == config["objects"]
    changed = DIGITS.x.copy()
    changed[0, 0, 0, 0] += 1
    for other in ({"data": (changed, DIGITS.y)}, {"data": "digits"}, {"model": perceptron(DIGITS)}):
        with pytest.raises(UserError, match="came as Python objects: it goes on from Python only"):
            simulate(**{**given, **other}, out=tmp_path, **SMALL)


def test_a_run_of_objects_that_was_cut_off_goes_on(tmp_path, every_event):
    given = {"strategy": "fedasync", "data": {i: (DIGITS.x[i::4], DIGITS.y[i::4]) for i in range(4)}, **SMALL}

    def loss(outputs, labels):
        return F.cross_entropy(outputs, labels)

    experiment = make_experiment(**given, loss=loss, workers=1)
    assert experiment.data.startswith("4 clients 1797x1x8x8 #")
    expected = run_experiment(experiment).result.digest
    with pytest.raises(PulledPlugError):
        run_experiment(experiment, tmp_path, pulled_after(9), checkpoint_seconds=0)
    assert (tmp_path / "checkpoint.safetensors").exists()
    assert run_experiment(experiment, tmp_path).result.digest == expected


def test_a_setting_that_is_changed_afterwards_is_no_object_any_more():
    experiment = make_experiment(strategy="fedasync", data=ARRAYS)
    assert experiment.own("data") is not None
    assert experiment.model_copy(update={"seed": 3}).own("data") is not None
    assert experiment.model_copy(update={"data": "digits"}).own("data") is None


def test_data_with_tokens_have_whole_numbers():
    tokens = np.arange(12).reshape(4, 3)
    dataset = make_experiment(strategy="fedasync", data=(tokens, [0, 1, 0, 1]), vocabulary=12).own("data")
    assert dataset == replace(dataset, vocabulary=12)
    assert dataset.x.dtype == np.int64


def test_a_parameter_that_is_given_as_a_setting_is_told_where_it_belongs() -> None:
    with pytest.raises(UserError, match=r"preset is a parameter of casa.*Give parameters=\{'preset': 'paper'\}"):
        make_experiment(strategy="casa", preset="paper")
    with pytest.raises(UserError, match="cfl has no presets"):
        make_experiment(strategy="cfl", parameters={"preset": "paper"}).check()
