"""Rehearsals and soloists: when a client under the rule ``jury`` starts from the served model alone, and when from its
own."""

from dataclasses import replace

import numpy as np
import pytest

from polytempo_client.personal.jury import Rows
from polytempo_client.personal.rule import (
    ENOUGH_SOLO_TASKS,
    REHEARSES,
    SOLO_TASKS,
    Beginning,
    ClientMemory,
    begin,
    is_far_worse,
    may_rehearse,
    remembered,
    using,
)
from polytempo_client.personal.told import SETTLED, SOLO, TUTTI, JuryScores, Personal
from support.juries import ANY, NO_JURY, SOLOIST, after_training, floats, scores

# Rehearsals.

KEEPS_MUCH = scores(10, (0,) * 4, (2.0, 2, 2, 4.0))  # 20 x .2^2 = .8
KEEPS_LITTLE = scores(10, (0,) * 4, (2.0, 2, 2, 3.0))  # 20 x .1^2 = .2
AFTER_ONE = replace(ANY, numbers={REHEARSES: 1.0})
IN_A_REHEARSAL = Personal(parameters={TUTTI: 1.0})


def test_every_other_task_in_which_a_client_would_keep_much_is_a_rehearsal() -> None:
    first = begin(ANY, KEEPS_MUCH, Personal(), False)
    assert (first.beta, first.rehearses) == (pytest.approx(0.8), False)
    assert first.memory is not None
    second = begin(first.memory, KEEPS_MUCH, Personal(), False)
    assert (second.beta, second.rehearses) == (0.0, True)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (KEEPS_LITTLE, Personal()),
        (scores(10, (0,) * 4, (1.0, 2, 2, 3.0)), Personal()),
        (scores(0, (0,) * 4, (0.0,) * 4), Personal(pool=scores(1, (0,) * 4, (0.2, 0, 0, 0.4)))),
        (KEEPS_MUCH, Personal(parameters={SOLO: 1.0})),
        (replace(KEEPS_MUCH, changed=True), Personal()),
    ],
    ids=["keeps little", "the served model is far worse", "no jury", "plays solo", "data changed"],
)
def test_no_rehearsal_where_a_client(said: JuryScores, told: Personal) -> None:
    begun = begin(AFTER_ONE, said, told, False)
    assert not begun.rehearses
    assert begun.memory is not None
    assert REHEARSES not in begun.memory.numbers


def test_the_server_may_ask_for_a_rehearsal_of_whoever_has_a_jury() -> None:
    for parameters in ({TUTTI: 1.0}, {TUTTI: 1.0, SOLO: 1.0}):
        for said in (KEEPS_MUCH, KEEPS_LITTLE):
            assert begin(ANY, said, Personal(parameters=parameters), False)[:2] == (0.0, True)
    assert begin(ANY, NO_JURY, IN_A_REHEARSAL, False)[:2] == (0.0, False)
    assert begin(SOLOIST, A_MIXTURE_IS_BEST, IN_A_REHEARSAL, False)[:2] == (0.0, False)  # it trains on its jury's rows
    assert may_rehearse(ANY, IN_A_REHEARSAL)
    assert may_rehearse(AFTER_ONE, Personal())
    assert not may_rehearse(AFTER_ONE, Personal(parameters={SOLO: 1.0}))
    assert not may_rehearse(ANY, Personal())


def test_a_served_model_with_three_times_the_brier_score_is_far_worse() -> None:
    assert is_far_worse(scores(10, (0,) * 4, (1.0, 0, 0, 3.0)), None)
    assert not is_far_worse(scores(10, (0,) * 4, (1.0, 0, 0, 2.9)), None)
    pool = scores(1, (0,) * 4, (0.2, 0, 0, 0.2))  # with it 5 and 7 in place of 1 and 3
    assert not is_far_worse(scores(10, (0,) * 4, (1.0, 0, 0, 3.0)), pool)


@pytest.mark.parametrize(("trained", "becomes_its_own"), [(0.2, True), (0.1, True), (0.3, False)])
def test_what_a_client_rehearsed_becomes_its_own_if_its_jury_does_not_like_it_less(
    trained: float, becomes_its_own: bool
) -> None:
    """A model is a number, which is each row's error and Brier score. The client's own is .2, its average .6."""
    memory = ClientMemory(floats(0.2), floats(0.6), np.array([3]), {REHEARSES: 1.0})
    rows = Rows(np.array([0, 1]), np.array([2, 3]), np.array([5]), False)
    kept = remembered(Beginning(0.0, True, memory), floats(trained), rows, lambda model, rows: np.full((2, 2), model))
    if becomes_its_own:
        assert (kept.own.tolist(), kept.known.tolist()) == ([np.float32(trained)], [3, 5])
        assert kept.average == pytest.approx((0.6 + trained) / 2)
        assert kept.numbers == {REHEARSES: 1.0}  # and the next task is a rehearsal again
    else:
        assert (kept.own is memory.own, kept.average is memory.average, kept.known.tolist()) == (True, True, [3])
        assert kept.numbers == {}


# Soloists.

OWN_IS_BEST = scores(10, (0, 1, 1, 1), (1.0, 2, 2, 2))
A_MIXTURE_IS_BEST = scores(10, (1, 0, 1, 1), (1.0, 0, 2, 2))
FOR_GOOD = Personal(parameters={SOLO: 1.0, SETTLED: 1.0})


def counted(memory: ClientMemory, said: JuryScores, told: Personal, chooses: bool = False) -> ClientMemory:
    after = begin(memory, said, told, chooses).memory
    assert after is not None
    return after


def test_a_client_is_a_soloist_after_three_tasks_for_good_in_which_it_would_use_its_own_alone() -> None:
    memory = ANY
    for _ in range(ENOUGH_SOLO_TASKS):
        assert not memory.is_soloist
        memory = counted(memory, OWN_IS_BEST, FOR_GOOD)
    assert memory.is_soloist


@pytest.mark.parametrize(
    ("said", "told", "chooses"),
    [
        (OWN_IS_BEST, Personal(parameters={SOLO: 1.0}), False),
        (OWN_IS_BEST, Personal(), False),
        (A_MIXTURE_IS_BEST, FOR_GOOD, False),
        (replace(OWN_IS_BEST, changed=True), FOR_GOOD, False),
        (OWN_IS_BEST, FOR_GOOD, True),
        (NO_JURY, replace(FOR_GOOD, pool=scores(1, (0, 1, 1, 1), (0, 1, 1, 1))), False),
        (OWN_IS_BEST, Personal(parameters={**FOR_GOOD.parameters, TUTTI: 1.0}), False),
    ],
    ids=["tried out", "not solo", "a mixture is better", "data changed", "candidates", "no jury", "a rehearsal"],
)
def test_the_count_begins_anew_with(said: JuryScores, told: Personal, chooses: bool) -> None:
    twice = counted(counted(ANY, OWN_IS_BEST, FOR_GOOD), OWN_IS_BEST, FOR_GOOD)
    assert SOLO_TASKS not in counted(twice, said, told, chooses).numbers


@pytest.mark.parametrize("parameters", [{}, {TUTTI: 1.0}, FOR_GOOD.parameters], ids=["nothing", "a rehearsal", "solo"])
def test_a_soloist_goes_on_from_its_own_whatever_the_server_and_the_pool_say(parameters: dict[str, float]) -> None:
    pool = scores(1, (1.0, 1, 1, 0), (1.0, 1, 1, 0))
    assert begin(SOLOIST, NO_JURY, Personal("jury", parameters, pool), False) == (1.0, False, SOLOIST)
    assert using(SOLOIST, NO_JURY, pool) == 0.0


def test_new_rows_that_prefer_a_mixture_end_a_soloist() -> None:
    assert counted(SOLOIST, OWN_IS_BEST, FOR_GOOD).is_soloist
    assert not counted(SOLOIST, A_MIXTURE_IS_BEST, FOR_GOOD).is_soloist
    assert using(SOLOIST, A_MIXTURE_IS_BEST, None) == 0.25


def test_a_soloist_whose_data_have_changed_or_that_chooses_a_model_is_none_any_more() -> None:
    moved = scores(10, (5, 5, 5, 0), (5, 5, 5, 0), changed=True)
    assert begin(SOLOIST, moved, FOR_GOOD, False).beta == 0.0
    assert not counted(SOLOIST, moved, FOR_GOOD).is_soloist
    assert using(SOLOIST, moved, None) == 1.0
    assert begin(SOLOIST, NO_JURY, FOR_GOOD, True).beta == 0.0
    assert not counted(SOLOIST, NO_JURY, FOR_GOOD, chooses=True).is_soloist
    assert after_training(SOLOIST, 2, [5]).is_soloist
    assert not after_training(SOLOIST, 2, [5], changed=True).is_soloist
