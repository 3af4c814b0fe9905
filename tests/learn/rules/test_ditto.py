import numpy as np
import pytest

from polytempo.learn.rules import rule_of
from polytempo_client.personal.told import Personal
from support.softmax import RATE, carried_out, descended, gradient, make_learner, some_vector

DITTO = Personal("ditto", {"lambda": 0.7})
W, W2 = some_vector(1), some_vector(2)


def near(v: np.ndarray, w: np.ndarray, steps: int = 3, lam: float = 0.7) -> np.ndarray:
    """``v <- v - eta (grad f(v) + lambda (v - w))``"""
    for _ in range(steps):
        v = v - RATE * (gradient(v) + lam * (v - w))
    return v


@pytest.mark.parametrize("engine", ["eager", "fused"])
def test_the_personal_model_is_trained_near_the_served_one_and_kept(engine: str) -> None:
    learner = make_learner(engine)
    first = carried_out(learner, W, DITTO)
    assert first.memory is not None
    assert np.abs(first.memory.own - near(W, W)).max() < 1e-6, "v begins as the first model that the client is sent"
    second = carried_out(learner, W2, DITTO, first.memory)
    assert second.memory is not None
    assert np.abs(second.memory.own - near(near(W, W), W2)).max() < 1e-6
    assert np.array_equal(
        rule_of(DITTO).used(second.memory, W, DITTO, lambda: pytest.fail("there is no jury")), second.memory.own
    )


def test_what_is_handed_in_is_what_fedavg_hands_in() -> None:
    learner = make_learner()
    memory = carried_out(learner, W, DITTO).memory
    update = carried_out(learner, W2, DITTO, memory).update
    assert np.abs(update.weights.numpy() - descended(W2, 3)).max() < 1e-6


def test_without_lambda_the_personal_model_is_trained_alone() -> None:
    learner, alone = make_learner(), Personal("ditto", {"lambda": 0.0})
    memory = carried_out(learner, W2, alone, carried_out(learner, W, alone).memory).memory
    assert memory is not None
    assert np.abs(memory.own - descended(W, 6)).max() < 1e-6


def test_a_personal_model_that_diverges_is_not_kept() -> None:
    learner, steep = make_learner(), Personal("ditto", {"lambda": 1e30})
    first = carried_out(learner, W, DITTO)
    result = carried_out(learner, W2, steep, first.memory)
    assert result.memory is None
    assert np.isfinite(result.update.weights.numpy()).all()
