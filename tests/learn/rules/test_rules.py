"""What all rules have in common."""

import numpy as np
import pytest
from torch import nn

from polytempo.core.errors import UserError
from polytempo.core.orders import Work
from polytempo.core.state import digest, pack, unpack
from polytempo.learn.learner import Learner
from polytempo.learn.rules import RULES, rule_of
from polytempo.strategies import make_strategy
from polytempo_client.personal.told import Personal
from support.softmax import ROWS, carried_out, make_learner, some_vector

METHODS = ["ditto", "apfl", "fedala"]
BATCHES = Work(batch_size=3, lr=0.25)


def rule(method: str) -> Personal:
    personal = make_strategy(method, {}).personal()
    assert personal is not None
    return personal


def a_life(method: str, tasks: int = 4, saved: bool = False) -> str:
    """The digest of what a client hands in and remembers."""
    learner, memory, seen = make_learner(), None, []
    for count in range(tasks):
        result = carried_out(learner, some_vector(count), rule(method), memory, 5, BATCHES, count)
        memory = unpack(*pack(result.memory)) if saved else result.memory
        seen += [result.update.weights, result.memory]
    return digest(seen)


@pytest.mark.parametrize("method", METHODS)
def test_a_client_ends_with_the_same_bits_every_time_and_from_a_saved_memory(method: str) -> None:
    assert a_life(method) == a_life(method) == a_life(method, saved=True)


@pytest.mark.parametrize("method", METHODS)
def test_a_memory_that_is_given_is_not_changed(method: str) -> None:
    learner = make_learner()
    memory = carried_out(learner, some_vector(1), rule(method)).memory
    before = digest(memory)
    carried_out(learner, some_vector(2), rule(method), memory)
    assert digest(memory) == before


@pytest.mark.parametrize("method", METHODS)
def test_a_client_without_a_jury_trains_on_all_its_rows(method: str) -> None:
    assert not rule_of(rule(method)).has_jury
    assert carried_out(make_learner(), some_vector(1), rule(method)).update.samples == len(ROWS)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_is_remembered_of_a_training_that_diverged(method: str) -> None:
    assert carried_out(make_learner(), some_vector(1) * np.float32(np.inf), rule(method)).memory is None


@pytest.mark.parametrize("method", METHODS)
def test_a_model_with_batch_norm_and_dropout_can_be_personal(method: str) -> None:
    learner = Learner(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)))
    rng, memory = np.random.default_rng(0), None
    for _ in range(3):
        served = np.abs(rng.normal(size=learner.schema.size)).astype(np.float32)
        memory = carried_out(learner, served, rule(method), memory, work=BATCHES).memory
        assert memory is not None
        assert (memory.own[learner.schema.spans["1.running_var"]] > 0).all()


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(UserError, match=r"personal rule.*'dito'"):
        rule_of(Personal("dito"))
    assert "jury" in RULES
