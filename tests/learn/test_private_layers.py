"""How a model is divided into what travels and what stays at the client."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polytempo.core.errors import UserError
from polytempo.core.model.vectors import schema_of
from polytempo.core.orders import Candidates, Objective, Send, Train, Work
from polytempo.learn.eager import EagerEngine
from polytempo.learn.flat import initial_vector
from polytempo.learn.fused.engine import FusedEngine
from polytempo.learn.job import Batches, Job, Refresh
from polytempo.learn.learner import Assignment, Learner
from polytempo.learn.private_layers import PrivateLayers, private_tensors
from polytempo.testing import tiny_dataset
from polytempo.testing.building import two_layers
from polytempo_client.personal.rule import ClientMemory

DATA = tiny_dataset()
X, Y = torch.from_numpy(DATA.x), torch.from_numpy(DATA.y)
ROWS = np.arange(12)
BODY, HEAD = 4 * 5 + 5, 5 * 3 + 3
WORK = Work(steps=2, epochs=None, batch_size=len(ROWS), lr=0.5)


class Named(nn.Module):
    """Its outputs come of the layer before the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
        self.head = nn.Linear(5, 3)
        self.unused = nn.Linear(2, 2)


def layers(*names: str) -> PrivateLayers:
    module = two_layers()
    return PrivateLayers(schema_of(module), names, initial_vector(module))


@pytest.mark.parametrize(
    ("module", "names", "expected"),
    [
        (two_layers(), ["head"], ["2.weight", "2.bias"]),
        (two_layers(), ["body"], ["0.weight", "0.bias"]),
        (two_layers(), ["2.bias", "0"], ["0.weight", "0.bias", "2.bias"]),
        (Named(), ["head"], ["head.weight", "head.bias"]),
        (Named(), ["stem.1"], ["stem.1.weight", "stem.1.bias", "stem.1.running_mean", "stem.1.running_var"]),
        (Named(), ["stem", "unused.bias"], None),
        (two_layers(), [], []),
    ],
)
def test_layers_have_the_models_names_and_head_and_body_are_known(
    module: nn.Module, names: list[str], expected: list[str] | None
) -> None:
    if expected is None:
        stem = [f"stem.0.{name}" for name in ("weight", "bias")] + [f"stem.1.{name}" for name in ("weight", "bias")]
        expected = [*stem, "unused.bias", "stem.1.running_mean", "stem.1.running_var"]
    assert private_tensors(schema_of(module), names) == expected


def test_the_body_is_all_but_the_head_statistics_included() -> None:
    schema = schema_of(Named())
    body = PrivateLayers(schema, ["body"], torch.zeros(schema.size)).shared
    assert body.names == ("head.weight", "head.bias")
    assert body.parameter_count == body.size == 18
    rest = PrivateLayers(schema, ["head"], torch.zeros(schema.size)).shared
    assert (rest.size, rest.parameter_count) == (schema.size - 18, schema.parameter_count - 18)


def test_a_wrong_name_is_an_error_that_lists_the_layers() -> None:
    with pytest.raises(UserError, match=r"'hed'.*Expected head, body, .*: stem\.0, stem\.1, head, unused\."):
        private_tensors(schema_of(Named()), ["hed"])
    with pytest.raises(UserError, match=r"head, body, which are all layers.*standalone"):
        private_tensors(schema_of(two_layers()), ["head", "body"])


def test_a_client_that_has_never_trained_has_the_initial_private_layers() -> None:
    divided, whole = layers("head"), torch.arange(float(BODY + HEAD))
    assert torch.equal(divided.shared_of(whole), whole[:BODY])
    first = initial_vector(two_layers())
    divided = PrivateLayers(schema_of(two_layers()), ["head"], first)
    assert torch.equal(divided.whole(whole[:BODY], None), torch.cat([whole[:BODY], first[BODY:]]))
    memory = ClientMemory(private=whole[BODY:].numpy())
    assert torch.equal(divided.whole(whole[:BODY], memory), whole)
    with pytest.raises(UserError, match="remembers 3 numbers of private layers, and the model has 18"):
        divided.whole(whole[:BODY], ClientMemory(private=np.zeros(3, np.float32)))


def test_without_private_layers_nothing_is_copied() -> None:
    vector = torch.zeros(BODY + HEAD)
    assert layers().whole(vector, None) is vector
    assert layers().shared_of(vector) is vector


# One task, against plain torch.


def trained(start: Tensor, steps: int, frozen: slice = slice(0, 0)) -> Tensor:
    """After full-batch gradient steps of torch's own."""
    module = two_layers()
    nn.utils.vector_to_parameters(start.clone(), module.parameters())
    for _ in range(steps):
        module.zero_grad()
        nn.functional.cross_entropy(module(X[ROWS]), Y[ROWS]).backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
        gradient[frozen] = 0
        moved = nn.utils.parameters_to_vector(module.parameters()) - WORK.lr * gradient  # type: ignore[operator]
        nn.utils.vector_to_parameters(moved.detach(), module.parameters())
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def assignment(order: Train, memory: ClientMemory | None = None, **more: Any) -> Assignment:
    return replace(Assignment(order, X, Y, ROWS, 2, 0, seed=0, memory=memory), **more)


def learner(*names: str) -> tuple[Learner, Tensor]:
    module = two_layers()
    first = initial_vector(module)
    return Learner(module, "eager").with_private(names, first), first


def test_what_leaves_is_shared_and_the_next_task_goes_on_from_what_stayed() -> None:
    client, first = learner("head")
    done = client.carry_out(assignment(Train(0, first[:BODY], 0, WORK)))
    expected = trained(first, 2)
    assert torch.allclose(done.update.weights, expected[:BODY], atol=1e-6)
    assert torch.equal(done.update.start, first[:BODY])
    assert torch.allclose(done.own, expected, atol=1e-6)
    assert done.memory is not None
    assert np.allclose(done.memory.private, expected[BODY:], atol=1e-6)
    served = torch.linspace(-1, 1, BODY)
    again = client.carry_out(assignment(Train(0, served, 1, WORK), done.memory))
    assert torch.allclose(again.own, trained(torch.cat([served, expected[BODY:]]), 2), atol=1e-6)


def test_what_an_order_trains_is_said_of_the_shared_layers() -> None:
    client, first = learner("head")
    for order in (
        Train(0, first[:BODY], 0, WORK, trainable=("0.bias",)),
        Train(0, first[:BODY], 0, WORK, mask=torch.arange(BODY) >= 20),
    ):
        done = client.carry_out(assignment(order))
        assert torch.allclose(done.own, trained(first, 2, slice(0, 20)), atol=1e-6)


def test_every_model_of_an_order_gets_the_clients_layers() -> None:
    divided, memory = layers("head"), ClientMemory(private=np.full(HEAD, 7, np.float32))
    objective = Objective(proximal=1.0, anchor=torch.full((BODY,), 2.0), linear=torch.full((BODY,), 3.0))
    offered = Candidates((torch.full((BODY,), 4.0), torch.full((BODY,), 5.0)), (0, 1))
    order = Train(0, torch.ones(BODY), 0, WORK, objective, offered)
    heard = {3: [Send(0, torch.full((BODY,), 6.0), 1)], 4: None}
    sends = ((1, Send(0, torch.full((BODY,), 8.0), 1)),)
    at_client = divided.at_client(assignment(order, memory, sends=sends))
    listening = divided.at_client(assignment(order, memory, listen=heard.__getitem__))
    assert listening.listen is not None
    told = listening.listen(3)
    assert told is not None
    assert listening.listen(4) is None
    order = at_client.order
    assert order.candidates is not None
    models = [order.weights, order.objective.anchor, *order.candidates.models, at_client.sends[0][1].weights]
    for model, shared in zip([*models, told[0].weights], [1, 2, 4, 5, 8, 6], strict=True):
        assert model is not None
        assert model.tolist() == [shared] * BODY + [7] * HEAD
    assert order.objective.linear is not None
    assert order.objective.linear.tolist() == [3] * BODY + [0] * HEAD


# Refreshes.


@pytest.mark.parametrize("engine", [EagerEngine, FusedEngine])
@pytest.mark.parametrize("rebase", [False, True])
def test_a_refresh_leaves_private_layers_as_they_are_trained(engine: type, rebase: bool) -> None:
    module = two_layers()
    first, fresh = initial_vector(module), torch.linspace(-1, 1, BODY + HEAD)
    kept = torch.arange(BODY + HEAD) >= BODY
    batches = Batches(np.tile(ROWS, 4), np.arange(5) * len(ROWS))
    refreshes = (Refresh(3, fresh, rebase),)
    found = engine(module).train(Job(first, X, Y, batches, WORK, 0.5, kept=kept, refreshes=refreshes))
    before = trained(first, 3)
    shared = fresh + (before - first) if rebase else fresh
    assert torch.allclose(found, trained(torch.where(kept, before, shared), 1), atol=1e-5)


def test_a_client_that_is_refreshed_goes_on_with_the_head_that_it_was_training() -> None:
    client, first = learner("head")
    fresh = torch.linspace(-1, 1, BODY)
    sends = ((1, Send(0, fresh, 1)),)
    done = client.carry_out(assignment(Train(0, first[:BODY], 0, WORK), sends=sends))
    assert torch.allclose(done.own, trained(torch.cat([fresh, trained(first, 1)[BODY:]]), 1), atol=1e-6)
    assert torch.equal(done.update.start, fresh)
