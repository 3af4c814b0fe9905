import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.orders import Train, Work
from polytempo.learn import learner as learner_module
from polytempo.learn.engines import make_engine
from polytempo.learn.flat import initial_vector, live_in_vector
from polytempo.learn.fused.engine import FusedEngine
from polytempo.learn.learner import Assignment, Learner
from polytempo.learn.models import Inputs, build_model
from polytempo.learn.questions import Asked, questions
from polytempo.testing import tiny_dataset
from polytempo_client.streams import stream

X, Y = torch.from_numpy(tiny_dataset().x), torch.from_numpy(tiny_dataset().y)
PROBE = X[1:3], Y[1:3]


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3))


class Forward(nn.Module):
    """A linear layer and then any function."""

    def __init__(self, then: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.then = then

    def forward(self, x: Tensor) -> Any:
        return self.then(self.layer(x))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(4, 3, num_layers=2, dropout=0.5, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x[:, None])[0][:, 0]


# Trying out


@pytest.mark.parametrize(
    "module",
    [
        Forward(F.dropout),
        Forward(lambda outputs: outputs + torch.rand(3)),
        nn.Sequential(linear(), nn.AlphaDropout(0.5)),
        nn.Sequential(linear(), nn.RReLU()),
        Recurrent(),
    ],
    ids=["F.dropout", "torch.rand", "AlphaDropout", "RReLU", "LSTM"],
)
def test_a_model_that_draws_from_the_global_generator_is_refused(module: nn.Module) -> None:
    with pytest.raises(UserError, match=r"The model draws.*nn\.Dropout layers"):
        Learner(module, probe=PROBE)


def test_dropout_layers_and_batch_norm_are_fine_and_the_probe_leaves_no_trace() -> None:
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 3))
    weights, generator, x = initial_vector(module), torch.get_rng_state(), PROBE[0].clone()
    Learner(module, probe=PROBE)
    assert torch.equal(initial_vector(module), weights)
    assert torch.equal(torch.get_rng_state(), generator)
    assert torch.equal(PROBE[0], x)
    assert isinstance(module[3], nn.Dropout)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_probe_that_draws_leaves_the_global_generator_as_it_was() -> None:
    module = Forward(F.dropout)
    generator = torch.get_rng_state()
    with pytest.raises(UserError):
        Learner(module, probe=PROBE)
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(5, 3)),
        nn.Sequential(nn.Linear(4, 2)),
        Forward(lambda outputs: (outputs, outputs)),
        Forward(lambda outputs: outputs.mean(0)),
        Forward(lambda outputs: outputs.detach()),
        Forward(lambda outputs: outputs.sum(1)),
    ],
    ids=["other inputs", "too few classes", "tuple", "no rows", "no gradient", "one output"],
)
def test_a_model_that_does_not_fit_is_named(module: nn.Module) -> None:
    with pytest.raises(UserError, match=r"The model .*Expected a module"):
        Learner(module, probe=PROBE)


@pytest.mark.parametrize(
    "loss",
    [
        math.sqrt,
        lambda outputs, y: 1.0,
        lambda outputs, y: F.cross_entropy(outputs, y, reduction="none"),
        lambda outputs, y: F.cross_entropy(outputs, y).detach(),
        lambda outputs, y: F.cross_entropy(outputs, y) / 0,
    ],
    ids=["sqrt", "float", "per sample", "no gradient", "not finite"],
)
def test_a_loss_that_does_not_fit_is_named(loss: Any) -> None:
    with pytest.raises(UserError, match=r"The loss .*Expected a function"):
        Learner(linear(), loss=loss, probe=PROBE)


@pytest.mark.parametrize(
    "metric",
    [math.sqrt, lambda outputs, y: outputs.mean(), lambda outputs, y: [1.0, 0.0], lambda outputs, y: outputs],
    ids=["sqrt", "scalar", "list", "row per sample"],
)
def test_a_metric_that_does_not_fit_is_named(metric: Any) -> None:
    with pytest.raises(UserError, match=r"The metric .*Expected a function"):
        Learner(linear(), metric=metric, probe=PROBE)


def test_a_loss_and_a_metric_of_ones_own_that_fit_are_accepted() -> None:
    Learner(
        linear(), loss=F.multi_margin_loss, metric=lambda outputs, y: outputs.gather(1, y[:, None])[:, 0], probe=PROBE
    )


# Carrying out


def carry_out(learner: Learner, module: nn.Module, *asked: str) -> Update:
    order = Train(0, initial_vector(module), 0, Work(batch_size=4), questions=asked)
    return learner.carry_out(Assignment(order, X, Y, np.arange(12), steps=3, count=0, seed=0)).update


def test_answers_of_numpy_numbers_become_plain_ones_that_can_be_saved(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(asked: Asked) -> Any:
        return {np.int64(1): [np.float32(0.5), (np.bool_(True), "word")], "mean": np.float64(0.25)}

    monkeypatch.setitem(questions._things, "numpy", answer)
    module = linear()
    answers = carry_out(Learner(module), module, "numpy").answers["numpy"]
    assert repr(answers) == "{1: [0.5, (True, 'word')], 'mean': 0.25}"  # numpy's numbers show their type


def test_dropout_draws_from_a_stream_that_nothing_else_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    purposes = []

    def spy(seed: int, purpose: str, *keys: int) -> np.random.Generator:
        purposes.append(purpose)
        return stream(seed, purpose, *keys)

    monkeypatch.setattr(learner_module, "stream", spy)
    module = linear()
    carry_out(Learner(module), module)
    assert purposes == ["batches", "model dropout"]  # "dropout" is a device that loses its training


# Flat vectors


def test_buffers_that_are_not_persistent_are_part_of_the_vector() -> None:
    module = linear()
    module.register_buffer("scale", torch.full((2,), 7.0), persistent=False)
    assert initial_vector(module)[-2:].tolist() == [7.0, 7.0]
    live_in_vector(module).zero_()
    assert module.scale.tolist() == [0.0, 0.0]


# Models


class NeedsWidth(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("math:sqrt", "real number"),
        ("math:pi", "not callable"),
        ("collections:OrderedDict", "OrderedDict"),
        (f"{__name__}:NeedsWidth", "width"),
    ],
)
def test_what_is_no_model_is_answered_with_what_was_expected(path: str, reason: str) -> None:
    with pytest.raises(
        UserError, match=rf"{reason}.*Expected a function of Inputs or of nothing, or an nn\.Module class"
    ):
        build_model(path, Inputs((4,), 3), seed=0)


@pytest.mark.parametrize("name", ["cnn", "lenet"])
def test_a_convolutional_model_names_itself_and_the_images_it_needs(name: str) -> None:
    with pytest.raises(UserError, match=f"{name}.*needs images"):
        build_model(name, Inputs((4,), 3), seed=0)
    with pytest.raises(UserError, match=f"{name}.*at least 4 x 4.*3 x 9"):
        build_model(name, Inputs((1, 3, 9), 3), seed=0)
    images = torch.zeros(2, 1, 4, 4)
    Learner(build_model(name, Inputs((1, 4, 4), 3), seed=0), probe=(images, Y[1:3]))


@pytest.mark.parametrize("shape", [(9, 128), (128,), (16,), (2, 35)])
def test_cnn1d_reads_signals_of_one_or_several_channels(shape: tuple[int, ...]) -> None:
    signals = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
    module = build_model("cnn1d", Inputs(shape, 3), seed=0)
    assert module(signals).shape == (5, 3)
    assert isinstance(make_engine("auto", module), FusedEngine)


@pytest.mark.parametrize("inputs", [Inputs((1, 28, 28), 3), Inputs((9, 15), 3), Inputs((64,), 3, vocabulary=100)])
def test_cnn1d_says_what_it_needs(inputs: Inputs) -> None:
    with pytest.raises(UserError, match="needs signals"):
        build_model("cnn1d", inputs, seed=0)
