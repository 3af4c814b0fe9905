import numpy as np
import pytest
import torch
from torch import nn

from polytempo.core.model.vectors import schema_of
from polytempo.core.orders import Train, Work
from polytempo.learn.learner import Assignment, Learner
from polytempo.learn.rules import rule_of
from polytempo.learn.rules.fedala import MOST_EPOCHS, aggregated, has_converged, reweighted, top_layers
from polytempo_client.personal.rule import ClientMemory
from polytempo_client.personal.told import Personal
from support.softmax import DATA, ROWS, SIZE, carried_out, descended, gradient, make_learner, some_vector

GIVEN = {"eta": 2.0, "layers": 1.0, "percent": 100.0, "threshold": 0.1, "window": 10.0}
FEDALA = Personal("fedala", GIVEN)
W, W2 = some_vector(1), some_vector(2)


def kept(own: np.ndarray, weights: np.ndarray | None = None, has_learned: bool = True) -> ClientMemory:
    weights = np.ones(SIZE, np.float32) if weights is None else weights
    return ClientMemory(own, weights, numbers={"has_learned": float(has_learned)})


def epochs_by_hand(own: np.ndarray, served: np.ndarray, weights: np.ndarray, epochs: int) -> np.ndarray:
    """``W <- clip(W - eta grad(own + (served - own) W) (served - own))``, on all rows at once."""
    for _ in range(epochs):
        start = own + (served - own) * weights
        weights = np.clip(weights - 2.0 * gradient(start) * (served - own), 0, 1)
    return weights


@pytest.mark.parametrize("engine", ["eager", "fused"])
def test_later_weights_are_learned_in_one_epoch_and_kept(engine: str) -> None:
    weights = np.random.default_rng(3).uniform(size=SIZE).astype(np.float32)
    result = carried_out(make_learner(engine), W2, FEDALA, kept(W, weights))
    expected = epochs_by_hand(W, W2, weights, 1)
    assert result.memory is not None
    assert np.abs(result.memory.average - expected).max() < 1e-5
    trained = descended(W + (W2 - W) * expected, 3)
    assert np.abs(result.memory.own - trained).max() < 1e-5
    assert np.abs(result.update.weights.numpy() - trained).max() < 1e-5, "the trained model is handed in"
    assert torch.equal(result.update.start, torch.from_numpy(W2)), "and counts from the served one"


def test_the_first_time_there_is_nothing_to_learn() -> None:
    result = carried_out(make_learner(), W, FEDALA)
    assert result.memory is not None
    assert np.abs(result.memory.own - descended(W, 3)).max() < 1e-6
    assert (result.memory.average == 1).all()
    assert not result.memory.numbers["has_learned"]
    same = carried_out(make_learner(), W, FEDALA, kept(W, has_learned=False)).memory
    assert same is not None
    assert not same.numbers["has_learned"], "the own model and the served one are the same"


def test_the_first_learning_goes_on_until_the_loss_has_settled_and_is_charged() -> None:
    learner, memory = make_learner(), kept(W, has_learned=False)
    result = carried_out(learner, W2, FEDALA, memory)
    assert result.memory is not None
    assert result.memory.numbers["has_learned"]
    work = Work(steps=3, epochs=None, batch_size=len(ROWS), lr=0.25)
    order = Train(0, torch.from_numpy(W2), 0, work, personal=FEDALA)
    x, y = torch.from_numpy(DATA.x), torch.from_numpy(DATA.y)
    epochs = rule_of(FEDALA).steps_ahead(learner, Assignment(order, x, y, ROWS, 3, 0, 0, memory=memory))
    assert 10 < epochs < MOST_EPOCHS
    assert np.abs(result.memory.average - epochs_by_hand(W, W2, np.ones(SIZE), int(epochs))).max() < 1e-4


def test_losses_have_settled_when_their_deviation_is_small_over_the_window() -> None:
    assert not has_converged([1.0] * 10, 10, 0.1)
    assert has_converged([1.0] * 11, 10, 0.1)
    assert has_converged([9.0] + [1.0] * 10, 10, 0.1)
    assert not has_converged([9.0] * 2 + [1.0] * 9, 10, 0.1)
    assert not has_converged([float("nan")] * 20, 10, 0.1)


def test_only_the_top_layers_are_aggregated_and_the_rest_is_served() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 1))
    schema = schema_of(module)
    top = top_layers(schema, 1)
    assert {name for name, span in schema.spans.items() if top[span].any()} == {"2.weight", "2.bias"}
    assert top_layers(schema, 9)[: schema.parameter_count].all()
    assert not top_layers(schema, 9)[schema.parameter_count :].any(), "statistics are as served"
    own, served = np.zeros(schema.size, np.float32), np.ones(schema.size, np.float32)
    start = aggregated(own, served, np.array([0.0, 0.5, 1.0], np.float32), top)
    assert start[top].tolist() == [0.0, 0.5, 1.0]
    assert (start[~top] == 1).all()


def test_weights_stay_between_0_and_1() -> None:
    weights, apart = np.full(3, 0.5, np.float32), np.array([1.0, 1.0, -2.0], np.float32)
    gradient = np.array([0.25, 9.0, 9.0], np.float32)
    assert reweighted(weights, gradient, apart, 1.0).tolist() == [0.25, 0.0, 1.0]


def test_weights_are_learned_on_a_share_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, seen = make_learner(), []
    batches = learner.batches
    monkeypatch.setattr(learner, "batches", lambda rows, *more: seen.append(rows) or batches(rows, *more))
    carried_out(learner, W2, Personal("fedala", GIVEN | {"percent": 60.0}), kept(W))
    assert [len(rows) for rows in seen] == [4, len(ROWS)], "60 % of 7 rows; then training, on all"
    assert set(seen[0]) < set(ROWS)


def test_a_client_uses_the_model_that_it_trained() -> None:
    assert rule_of(FEDALA).used(kept(W), W2, FEDALA, lambda: pytest.fail("there is no jury")) is W


def test_a_model_with_batch_norm_and_dropout_can_be_aggregated() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    learner = Learner(module)
    rng = np.random.default_rng(0)
    served, own = (np.abs(rng.normal(size=learner.schema.size)).astype(np.float32) for _ in range(2))
    top = np.ones(np.count_nonzero(top_layers(learner.schema, 1)), np.float32)
    result = carried_out(learner, served, FEDALA, kept(own, top))
    assert result.memory is not None
    assert 0 <= result.memory.average.min() < result.memory.average.max() <= 1
