"""CDFL's estimates of a client's mixture, by hand and against a second formulation."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from contract.reference import cdfl as reference
from polytempo.core.errors import UserError
from polytempo.strategies import make_strategy
from polytempo.strategies.methods.cdfl import (
    CDFL,
    estimated_mixture,
    lessons_in,
    readers,
    relevance,
    standardised_mixture,
)
from polytempo.testing import Planted, begun, update, vector


def cdfl(*models: Tensor, **given: object) -> CDFL:
    made = make_strategy("cdfl", given)
    assert isinstance(made, CDFL)
    return begun(made, vector(0, 0), 2, objects={"proxies": Planted(*models)})


LEFT, RIGHT = vector(0, 0), vector(4, 0)


# The estimate by direction


def test_how_much_of_each_lesson_an_update_shows_by_hand() -> None:
    # lessons (-2, 0) and (2, 0); (3, 4) has the direction (0.6, 0.8), and 0.6 = -2 c + 2 (-c) for c = -0.15
    assert lessons_in(vector(3, 4), readers([LEFT, RIGHT])) == pytest.approx([-0.15, 0.15])


def test_three_lessons_by_hand() -> None:
    # lessons (-1, -1), (2, -1), (-1, 2) with the sum 0; (1, 0) = 1/3 ((2, -1) - (-1, -1))
    shown = lessons_in(vector(5, 0), readers([vector(0, 0), vector(3, 0), vector(0, 3)]))
    assert shown == pytest.approx([-1 / 3, 1 / 3, 0], abs=1e-6)


def test_shares_are_in_units_of_what_is_usual_by_hand() -> None:
    odds = np.exp([2 * -0.3 / 0.5, 2 * 0.3 / 0.5])
    assert standardised_mixture(np.array([-0.3, 0.3]), 0.25, 2.0) == pytest.approx(odds / odds.sum())


def test_where_no_lesson_differs_all_shares_are_equal() -> None:
    assert standardised_mixture(np.zeros(4), 0.0, 1.0).tolist() == [0.25] * 4


def test_the_first_client_is_its_own_measure_and_the_second_is_compared_with_it() -> None:
    server = cdfl(LEFT, RIGHT)
    server.updated(update(0, 0, vector(2, 0), vector(2.5, 0)), 1.0)
    # c (-1/4, 1/4), whose variance is 1/8, and A is 1 / sqrt 2: softmax of (-1/2, 1/2)
    assert server.mixture(0) == pytest.approx([1 / (1 + np.exp(1)), 1 / (1 + np.exp(-1))])
    server.updated(update(1, 0, vector(2, 0), vector(2 + 3, 4)), 2.0)
    # c (-0.15, 0.15), variance 0.045; the mean of 0.125 and 0.045 is 0.085
    assert server.mixture(1)[1] == pytest.approx(1 / (1 + np.exp(-0.3 / 0.17**0.5)))


models_and_updates = st.integers(2, 5).flatmap(
    lambda k: st.tuples(st.just(k), st.integers(0, 2**32 - 1), st.lists(st.integers(0, 3), min_size=1, max_size=6))
)


@given(models_and_updates)
def test_mixtures_are_those_of_a_second_formulation(drawn: tuple[int, int, list[int]]) -> None:
    k, seed, clients = drawn
    rng = np.random.default_rng(seed)
    models = rng.normal(size=(k, 12)).astype(np.float32)
    server = cdfl(*map(torch.from_numpy, models))
    ends = [(client, *rng.normal(size=(2, 12)).astype(np.float32)) for client in clients]
    for (client, start, end), expected in zip(
        ends, reference.mixtures_in_turn(models.astype(float), ends), strict=True
    ):
        server.updated(update(client, server.t, torch.from_numpy(start), torch.from_numpy(end)), 1.0)
        assert server.mixture(client) == pytest.approx(expected, rel=1e-3, abs=1e-5)


@given(st.floats(1e-3, 1e3), st.floats(0.1, 10))
def test_neither_the_level_of_losses_nor_the_length_of_updates_makes_estimates_sharper(
    level: float, far: float
) -> None:
    """Losses do not enter. A learning rate, a number of steps or a scale of losses that is another one for everybody
    makes all updates longer or shorter."""
    near, apart = cdfl(LEFT, RIGHT), cdfl(LEFT, RIGHT * level)
    for client, delta in enumerate((vector(1, 0), vector(0.3, -0.4), vector(-0.6, 0.1))):
        near.updated(update(client, 0, LEFT, delta), 1.0)
        apart.updated(update(client, 0, LEFT, delta * far), 1.0)
        assert apart.mixture(client) == pytest.approx(near.mixture(client), rel=1e-3)


@given(st.permutations(range(4)), st.integers(0, 2**32 - 1))
def test_clusters_in_another_order_have_the_same_shares(order: list[int], seed: int) -> None:
    models = torch.from_numpy(np.random.default_rng(seed).normal(size=(5, 9)).astype(np.float32))
    shares = []
    for clusters in (models[:4], models[order]):
        server = cdfl(*clusters)
        server.updated(update(0, 0, LEFT.new_zeros(9), models[4]), 1.0)
        shares.append(server.mixture(0))
    assert shares[1] == pytest.approx(shares[0][order], rel=1e-3)


def test_an_update_that_does_not_move_or_is_no_number_leaves_the_last_known_mixture() -> None:
    server = cdfl(LEFT, RIGHT)
    server.updated(update(0, 0, LEFT, vector(1, 1)), 1.0)
    known, models = server.mixture(0), [model.tolist() for model in server.cluster_models()]
    for end in (LEFT, vector(float("nan"), 0), vector(float("inf"), 0), vector(1e30, 1e30)):
        server.updated(update(0, server.t, LEFT, end), 2.0)
        assert server.mixture(0) is known
    assert [model.tolist() for model in server.cluster_models()] == models


def test_a_client_that_is_forgotten_is_no_longer_what_is_usual() -> None:
    server, alone = cdfl(LEFT, RIGHT), cdfl(LEFT, RIGHT)
    server.updated(update(1, 0, LEFT, vector(0, 1)), 1.0)
    server.forget(1)
    for each in (server, alone):
        each.updated(update(0, each.t, LEFT, vector(3, 4)), 2.0)
    assert server.mixture(0) == pytest.approx(alone.mixture(0))


def test_the_estimate_by_direction_takes_no_pass_over_proxy_sets() -> None:
    server = cdfl(LEFT, RIGHT)
    server.setting.objects["proxies"].losses = None
    server.setting.objects["proxies"].loss = None
    server.updated(update(0, 0, LEFT, vector(1, 0)), 1.0)
    assert server.cluster_models()[1].tolist() != RIGHT.tolist()


def test_cluster_models_that_are_all_one_are_refused_with_what_to_do() -> None:
    with pytest.raises(UserError, match="take estimate=paper"):
        make_strategy("cdfl", {"specialise": 0})
    assert make_strategy("cdfl", {"specialise": 0, "estimate": "paper"})


# Algorithm 2's estimate


def test_the_papers_preset_takes_algorithm_2_and_what_is_given_wins() -> None:
    def made(**given: object) -> object:
        return make_strategy("cdfl", given).parameters()["estimate"]

    assert (made(), made(preset="paper"), made(preset="paper", estimate="direction")) == (
        "direction",
        "paper",
        "direction",
    )


@given(st.integers(2, 6), st.integers(0, 2**32 - 1))
def test_the_papers_estimate_is_that_of_a_second_formulation(k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses, own, distances = rng.uniform(0.1, 2.0, size=(3, k))
    bars = (0.05, -0.02, 0.01)
    measures = (losses - bars[0], np.abs(own - losses) - bars[1], distances - bars[2])
    expected = reference.distribution_estimate(losses, own, distances, (0.7, 0.2), bars, 8.0 * k)
    assert estimated_mixture(measures, (0.7, 0.2, 1 - 0.7 - 0.2), 8.0 * k) == pytest.approx(expected)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.integers(1, 9))
def test_the_papers_update_ratios_are_those_of_a_second_formulation(raw: list[float], age: int) -> None:
    shares = np.array(raw) / np.sum(raw)
    least = 1 / (2 * len(raw))
    assume(np.abs(shares - least).min() > 1e-9)
    server = cdfl(LEFT, RIGHT, preset="paper")
    found = server.beta0 * server.freshness(age) * relevance(shares, least)
    assert found == pytest.approx(reference.update_ratios(shares.tolist(), least, 0.025, age, 10.0, 5.0))


def test_the_estimate_by_hand() -> None:
    measures = (np.array([1.0, 3.0]), np.array([2.0, 2.0]), np.array([1.0, 4.0]))
    # K - 1 = 1: 0.5 (3/4, 1/4) + 0.2 (1/2, 1/2) + 0.3 (4/5, 1/5) = (0.715, 0.285)
    expected = 1 / (1 + np.exp(-2.0 * (0.715 - 0.285)))
    assert estimated_mixture(measures, (0.5, 0.2, 0.3), 2.0) == pytest.approx([expected, 1 - expected])


def test_three_clusters_divide_the_score_by_two() -> None:
    measures = (np.array([1.0, 2.0, 3.0]), np.zeros(3), np.zeros(3))
    # 1/2 (1 - (1, 2, 3) / 6) = (5, 4, 3) / 12
    raised = np.exp(12.0 * np.array([5, 4, 3]) / 12)
    assert estimated_mixture(measures, (1.0, 0.0, 0.0), 12.0) == pytest.approx(raised / raised.sum())


def test_a_measure_that_sums_to_nothing_counts_as_an_even_split() -> None:
    even = estimated_mixture((np.zeros(4), np.zeros(4), np.zeros(4)), (0.5, 0.1, 0.4), 72.0)
    assert even == pytest.approx([0.25] * 4)


@given(st.integers(1, 6), st.data())
def test_estimates_are_on_the_simplex_and_ordered_as_the_measures(k: int, data: st.DataObject) -> None:
    numbers = st.lists(st.floats(0, 1e6, width=32), min_size=k, max_size=k)
    measure = np.array(data.draw(numbers))
    shares = estimated_mixture((measure, measure, measure), (0.5, 0.1, 0.4), 6.0 * k * max(k - 1, 1))
    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1)
    assert shares[measure.argmin()] == pytest.approx(shares.max())
