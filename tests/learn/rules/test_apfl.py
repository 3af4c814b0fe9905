from typing import NamedTuple

import numpy as np
import pytest

from polytempo.learn.rules import rule_of
from polytempo.learn.rules.apfl import adapted
from polytempo_client.personal.told import Personal
from support.softmax import RATE, carried_out, descended, gradient, make_learner, some_vector

APFL = Personal("apfl", {"alpha": 0.4, "adaptive": 1.0})
FIXED = Personal("apfl", {"alpha": 0.4, "adaptive": 0.0})
W, W2 = some_vector(1), some_vector(2)


class State(NamedTuple):
    w: np.ndarray
    v: np.ndarray
    alpha: float

    @property
    def mixture(self) -> np.ndarray:
        return self.alpha * self.v + (1 - self.alpha) * self.w


def a_round(state: State, adaptive: bool = True, steps: int = 3) -> State:
    """Algorithm 1; alpha moves at the first step, when w is the served model."""
    w, v, alpha = state
    for step in range(steps):
        at_mixture = gradient(State(w, v, alpha).mixture)
        v_after = v - RATE * alpha * at_mixture
        if step == 0 and adaptive:
            alpha = float(np.clip(alpha - RATE * ((v - w) @ at_mixture), 0, 1))
        w, v = w - RATE * gradient(w), v_after
    return State(w, v, alpha)


@pytest.mark.parametrize("engine", ["eager", "fused"])
@pytest.mark.parametrize("rule", [APFL, FIXED], ids=["adaptive", "fixed"])
def test_two_rounds_are_those_of_the_papers_algorithm(rule: Personal, engine: str) -> None:
    learner, adaptive = make_learner(engine), rule is APFL
    first = carried_out(learner, W, rule).memory
    result = carried_out(learner, W2, rule, first)
    expected = a_round(State(W, W, 0.4), adaptive)
    expected = a_round(State(W2, expected.v, expected.alpha), adaptive)
    memory = result.memory
    assert memory is not None
    assert np.abs(result.update.weights.numpy() - expected.w).max() < 1e-6
    assert np.abs(memory.average - expected.v).max() < 1e-6
    assert memory.numbers["alpha"] == pytest.approx(expected.alpha, abs=1e-6)
    assert (memory.numbers["alpha"] == 0.4) == (not adaptive)
    assert np.abs(memory.own - expected.mixture).max() < 1e-6, "its own is the mixture as trained"


def test_what_is_handed_in_is_what_fedavg_hands_in() -> None:
    assert np.abs(carried_out(make_learner(), W, APFL).update.weights.numpy() - descended(W, 3)).max() < 1e-6


def test_a_client_uses_its_mixture_with_the_model_that_it_is_served_now() -> None:
    memory = carried_out(make_learner(), W, FIXED).memory
    assert memory is not None
    used = rule_of(FIXED).used(memory, W2, FIXED, lambda: pytest.fail("there is no jury"))
    assert np.abs(used - (0.4 * memory.average + 0.6 * W2)).max() < 1e-6


def test_alpha_rises_where_the_own_model_is_better_and_stays_between_0_and_1() -> None:
    v, w, slope = np.array([1.0, 0.0]), np.array([0.0, 0.0]), np.array([-2.0, 5.0])
    assert adapted(0.3, v, w, slope, rate=0.1) == pytest.approx(0.5)
    assert adapted(0.3, v, w, -slope, rate=0.1) == pytest.approx(0.1)
    assert adapted(0.3, v, w, slope, rate=9.0) == 1.0
    assert adapted(0.3, v, w, -slope, rate=9.0) == 0.0
