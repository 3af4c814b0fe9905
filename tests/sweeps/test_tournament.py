"""Tournaments, with a clock that counts updates, so that budgets mean the same on every machine."""

import math
from dataclasses import replace

import pytest

from polytempo.core.errors import DivergenceError, UserError
from polytempo.sim.experiment import Experiment, make_experiment
from polytempo.sim.run import Finished, run_experiment
from polytempo.sweeps.tournament import Advice, Budget, hold_tournament

WORLD = {"data": "digits", "clients": 4, "partition": "groups:0.5,0.5", "validation_share": 0.2}


class World:
    """Makes runs, and is the clock."""

    def __init__(self) -> None:
        self.updates = 0
        self.made: list[Experiment] = []

    def make(self, experiment: Experiment) -> Finished:
        finished = run_experiment(experiment)
        self.made.append(experiment)
        self.updates += finished.result.updates
        return finished

    def advice(self, budget: float, *contenders: str, **settings) -> Advice:
        base = make_experiment(strategy="fedasync", **{**WORLD, **settings})
        return hold_tournament(base, contenders, 2, Budget(budget, lambda: self.updates), self.make)


@pytest.fixture(scope="module")
def held() -> tuple[World, Advice]:
    world = World()
    return world, world.advice(1000, "fedavg", "standalone", "fedasync")


def test_it_stays_within_its_budget(held):
    world, advice = held
    assert advice.rounds >= 2
    assert world.updates <= 1000


def test_those_who_train_alone_are_ahead_of_one_model_where_groups_have_labels_of_their_own(held):
    _, advice = held
    assert advice.best.strategy == "standalone"
    assert {one.strategy for one in advice.standings} == {"fedavg", "standalone", "fedasync"}
    assert math.isnan(advice.best.behind[0])
    low, high = advice.standings[1].behind
    assert low < high
    assert 0 <= advice.best.interval[0] <= advice.best.mean <= advice.best.interval[1] <= 1


def test_the_better_half_goes_on_for_twice_as_long_on_the_same_seeds(held):
    world, advice = held
    rounds: dict[float | None, list[tuple[str, int]]] = {}
    for one in world.made[1:]:
        rounds.setdefault(one.time, []).append((one.strategy, one.seed))
    first, second, *_ = rounds
    assert second == pytest.approx(2 * first)
    assert len(rounds[first]) == 6
    assert len(rounds[second]) == 4
    assert {seed for _, seed in rounds[second]} == {0, 1}
    assert [one.round for one in advice.standings].count(advice.rounds) == 2


def test_the_ranking_is_by_validation_rows_alone():
    def without_test_scores(experiment: Experiment) -> Finished:
        finished = run_experiment(experiment)
        return replace(finished, result=replace(finished.result, accuracy_used=math.nan, accuracy=math.nan))

    base = make_experiment(strategy="fedasync", **WORLD, time=50)
    advice = hold_tournament(base, ["fedavg", "standalone"], 1, Budget(math.inf, lambda: 0), without_test_scores)
    assert advice.best.strategy == "standalone"


def test_time_is_the_longest_that_a_run_lasts():
    world = World()
    advice = world.advice(math.inf, "standalone", "fedasync", time=100)
    assert advice.length == 100
    assert max(one.time for one in world.made[1:]) == 100


def test_without_time_for_a_first_round_it_says_so():
    with pytest.raises(UserError, match="The time is over before the first round: 2 strategies with 2 seeds"):
        World().advice(90, "standalone", "fedasync")


def test_one_whose_training_diverges_is_last_and_does_not_go_on():
    world = World()

    def make(experiment: Experiment) -> Finished:
        if experiment.strategy == "fedavg":
            raise DivergenceError("too fast")
        return world.make(experiment)

    base = make_experiment(strategy="fedasync", **WORLD, time=100)
    advice = hold_tournament(base, ["fedavg", "standalone"], 1, Budget(math.inf, lambda: 0), make)
    assert [(one.strategy, one.failure) for one in advice.standings] == [("standalone", ""), ("fedavg", "too fast")]
    assert advice.standings[1].round == 1
    assert advice.not_worse == []


def test_without_validation_rows_nothing_is_ranked():
    with pytest.raises(UserError, match="No client has validation rows"):
        World().advice(1000, "standalone", validation_share=0)
