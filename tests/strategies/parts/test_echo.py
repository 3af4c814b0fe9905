"""When a fresh model is worth a broadcast: the policies, and the predictor that learns when."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polytempo.core.model.rows import l1
from polytempo.core.state import pack, unpack
from polytempo.strategies.parts.echo import Echo
from polytempo.strategies.parts.echo_predictor import LAST, Predictor, examples, pretrained, window_of
from polytempo.strategies.parts.echo_states import RECORDED
from polytempo.testing import vector


@pytest.fixture(autouse=True)
def one_thread():
    """As drivers do: the network is small, and threads that wait for each other take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def walked(*places: float, predictor: Predictor | None = None) -> Echo:
    """A model of one number that was at these places after aggregations, and began at 0."""
    echo, before = Echo(vector(0), predictor), 0.0
    for place in places:
        echo.record(vector(place), abs(place - before))
        before = place
    return echo


def test_the_accumulated_change_is_the_distance_from_the_last_broadcast():
    echo = walked(3, 5, 4)
    assert list(echo.changes) == [3, 2, 1]
    assert echo.accumulated == 4
    echo.mark_sent(vector(4))
    echo.record(vector(6), 2.0)
    assert echo.accumulated == 2
    assert l1(vector(1, -2), vector(0, 1)) == 4


def test_the_default_policy_broadcasts_from_rho_times_the_mean_of_the_last_ten_changes():
    assert not walked(1, 2, 3, 4).decide("accumulated", 5)
    assert walked(1, 2, 3, 4, 5).decide("accumulated", 5)
    assert not walked(1, 0, 1, 0, 1, 0, 1).decide("accumulated", 5)
    many = walked(*range(100, 1100, 100), *range(1001, 1011))  # the first ten changes are forgotten
    assert list(many.changes) == [1] * 10
    assert many.decide("accumulated", 5)


def test_equation_4_broadcasts_when_as_much_has_accumulated_as_the_last_change():
    assert walked(2, 4).decide("eq4", 5)  # 4 >= 2
    assert not walked(2, -1).decide("eq4", 5)  # 1 < 3


def test_always_and_never():
    assert walked(1).decide("always", 5)
    assert not walked(1, 100).decide("never", 5)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=80), st.floats(1, 8))
def test_while_changes_do_not_grow_at_most_one_in_rho_aggregations_is_broadcast(sizes, rho):
    echo, place, broadcasts = Echo(vector(0)), 0.0, 0
    for size in sorted(sizes, reverse=True):
        place += size
        echo.record(torch.tensor([place], dtype=torch.float64), size)
        if echo.decide("accumulated", rho * 1.001):  # but for rounding
            broadcasts += 1
            echo.mark_sent(torch.tensor([place], dtype=torch.float64))
    assert broadcasts <= len(sizes) / rho


@given(st.integers(1, 5000), st.integers(0, 9))
def test_the_l1_distance_is_that_of_the_definition(size, seed):
    a, b = torch.randn(2, size, generator=torch.Generator().manual_seed(seed))
    assert l1(a, b) == pytest.approx(float((a.double() - b.double()).abs().sum()), rel=1e-5)
    assert l1(a, a) == 0
    with pytest.raises(ValueError, match="expected"):
        l1(a, torch.zeros(size + 1))


# Through expansion and merging.


def test_an_expanded_cluster_has_the_same_predictor_and_no_record():
    echo = walked(1, 2, 3, predictor=pretrained())
    child = echo.expanded(vector(3))
    assert not child.changes
    assert child.accumulated == 0
    assert child.predictor is not None
    assert echo.predictor is not None
    assert child.predictor is not echo.predictor
    assert torch.equal(child.predictor.weights, echo.predictor.weights)


def test_merged_clusters_mix_their_records_and_average_their_predictors():
    one, other = Predictor(vector(0, 2)), Predictor(vector(4, 2))
    a, b = Echo(vector(0), one), Echo(vector(0), other)
    a.changes.extend([1, 2, 3])
    b.changes.extend([10, 20])
    merged = a.merged(b, vector(7))
    assert list(merged.changes) == [1, 10, 2, 20, 3]
    assert merged.accumulated == 0
    assert merged.broadcast.item() == 7
    assert merged.predictor is not None
    assert merged.predictor.weights.tolist() == [2, 2]
    a.changes.extend(range(10))
    b.changes.extend(range(100, 110))
    assert list(a.merged(b, vector(7)).changes) == [105, 5, 106, 6, 107, 7, 108, 8, 109, 9]


# The predictor.


def test_a_window_holds_the_last_changes_relative_to_the_accumulated_one():
    window = window_of([5.0, 1.0, 2.0], 2.0)
    assert window == [0.0] * 7 + [np.log(2.5), np.log(0.5), 0.0]
    assert window_of([1.0] * 20, 1.0) == [0.0] * LAST
    assert window_of([0.0, 1.0], 0.0)[-2:] == [-5, 5]
    assert window_of([np.inf, 1.0], np.inf)[-2:] == [-5, -5]
    assert max(map(abs, window_of([1e30, 1e-30], 1.0))) == 5


def test_recorded_states_give_1200_examples_with_the_labels_of_equation_4():
    windows, outcomes = examples(RECORDED)
    assert windows.shape == (1200, LAST)
    states = RECORDED[LAST - 1 :]
    assert outcomes.tolist() == [float(now[1] >= after[0]) for now, after in pairwise(states)]


def test_the_pretrained_predictor_fits_what_was_recorded_better_than_the_commoner_label():
    _, outcomes = examples(RECORDED)
    predictor = pretrained()
    changes = np.array([change for change, _ in RECORDED])
    said = [
        predictor.judge(changes[place - LAST + 1 : place + 1].tolist(), RECORDED[place][1])
        for place in range(LAST - 1, len(RECORDED) - 1, 4)
    ]
    hits = np.mean(np.array(said) == (outcomes.numpy()[::4] == 1))
    assert hits > max(outcomes.mean(), 1 - outcomes.mean()) + 0.1


def test_the_predictor_learns_a_rule_while_it_is_in_use():
    """Small and large changes take turns, and everything is broadcast at once, so that the accumulated change is
    always the last one: the next is at most as large exactly after a large one."""
    echo, place, hits = Echo(vector(0), pretrained()), 0.0, []
    assert echo.predictor is not None
    said = None
    for turn in range(160):
        change = 1.0 if turn % 2 == 0 else 3.0
        if said is not None:
            hits.append(said == (change == 1.0))
        place += change
        echo.record(vector(place), change)
        said = echo.decide("rnn", 5)
        echo.mark_sent(vector(place))
    labels = [outcome for _, outcome in echo.predictor.known]
    assert sum(labels) == LAST / 2  # a broadcast after the state was judged does not change what it was
    assert np.mean(hits[-40:]) > 0.9


def test_the_predictor_learns_only_from_states_that_it_judged():
    predictor = pretrained()
    before = predictor.weights
    predictor.learn(1.0)
    assert predictor.weights is before
    predictor.judge([1.0], 1.0)
    predictor.learn(1.0)
    assert not torch.equal(predictor.weights, before)
    assert [outcome for _, outcome in predictor.known] == [1.0]
    predictor.judge([1.0], 1.0)
    predictor.learn(1.1)
    assert [outcome for _, outcome in predictor.known] == [1.0, 0.0]


def test_a_predictor_comes_back_as_it_was_saved():
    predictor = pretrained()
    for step in range(12):
        predictor.judge([1.0, 2.0], 1.5)
        predictor.learn(1.0 + step % 2)
    loaded = unpack(*pack(predictor))
    for one in (predictor, loaded):
        one.judge([2.0, 1.0], 1.5)
        one.learn(1.0)
    assert torch.equal(predictor.weights, loaded.weights)


@pytest.mark.parametrize("policy", ["accumulated", "eq4", "rnn"])
def test_a_model_that_does_not_change_any_more_is_no_trouble(policy):
    echo = Echo(vector(0), pretrained() if policy == "rnn" else None)
    for _ in range(12):
        echo.record(vector(0), 0.0)
        assert policy == "rnn" or not echo.decide(policy, 5)
    if policy == "rnn":
        echo.decide(policy, 5)
        echo.record(vector(0), 0.0)
        assert echo.predictor is not None
        assert torch.isfinite(echo.predictor.weights).all()
