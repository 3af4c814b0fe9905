"""PACE: its rows, its buffers and its multicast, on cases small enough for pencil and paper."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from polytempo.core.orders import Send
from polytempo.strategies import make_strategy
from polytempo.strategies.parts.graph import Graph
from polytempo.testing import begun, update, vector

# Its rows of the graph.


def test_a_row_follows_from_likeness_and_sizes():
    pace = begun(make_strategy("pace", {"gamma": 0.8}), vector(0, 0), clients=3)
    pace.updated(update(1, 0, vector(0, 0), vector(0, 2), samples=2), 1.0)
    pace.updated(update(0, 0, vector(0, 0), vector(1, 0), samples=2), 2.0)
    # theta_0 = (1, 0); phi_1 = (0, 2), phi_2 = a bit of (0, 2): s = (-1, 0, 0), p = 1/3 each. p - gamma/2 s is
    # (1/3 + .4, 1/3, 1/3), less .4/3.
    np.testing.assert_allclose(pace.collaboration()[0], [0.6, 0.2, 0.2], atol=1e-6)


def test_what_is_compared_is_a_choice():
    """Two clients that agree in their last round only, and stand far from where all began."""
    start, there = vector(10, 0), vector(10, 1)
    rows = {}
    for compared in ("initial", "weights", "delta"):
        method = begun(make_strategy("pace", {"compared": compared, "gamma": 0.5}), vector(9, -1), clients=2)
        method.updated(update(1, 0, vector(0, 10), vector(0, 11)), 1.0)
        method.updated(update(0, 0, start, there), 2.0)
        rows[compared] = method.collaboration()[0]
    np.testing.assert_allclose(rows["delta"], [0.5, 0.5], atol=1e-6)
    # phi_1 = (0, 11) and theta_0 = (10, 1): cosines 1/sqrt(101), and from the initial model (-9, 12).(1, 2)
    for compared, cosine in (("weights", 1 / np.sqrt(101)), ("initial", 15 / np.sqrt(225 * 5))):
        half = 0.25 * (1 - cosine) / 2
        np.testing.assert_allclose(rows[compared], [0.5 + half, 0.5 - half], atol=1e-6)


# Its buffers.


@given(st.lists(st.integers(1, 3), min_size=1, max_size=12), arrays(float, 4, elements=st.floats(0.01, 1)))
def test_without_decay_a_buffer_is_the_normalised_mean_of_what_went_into_it(senders, weights):
    """The unrolled weights are those of Eq. 9, whatever the order and however often somebody sends."""
    pace = begun(make_strategy("pace", {}), vector(0.0), clients=4)
    pace.graph.put(0, np.arange(4), weights / weights.sum())
    row = pace.graph.weights[0].astype(float)
    unrolled = np.zeros(1 + len(senders))
    unrolled[0] = 1.0  # of phi_0, which is what client 0 handed in
    for number, sender in enumerate(senders, 1):
        alpha = pace._count_passed(sender)[0]
        unrolled *= 1 - alpha
        unrolled[number] = alpha
    taken = np.array([row[0], *(row[sender] for sender in senders)])
    np.testing.assert_allclose(unrolled, taken / taken.sum(), rtol=1e-9)


def test_a_buffer_moves_by_relevance_and_staleness():
    pace = begun(make_strategy("pace", {"staleness": "polynomial:1"}), vector(0.0), clients=3)
    pace.updated(update(0, 0, vector(0), vector(6), samples=1), 1.0)
    # Rows of 1 and 2 are p = 1/3: alpha = 1/3 / (1/3 + 1/3) = 1/2, tau = 0.
    assert [pace.model_for(client).item() for client in range(3)] == [6.0, 3.0, 3.0]
    pace.updated(update(0, 0, vector(0), vector(9), samples=1), 2.0)
    # Again client 0, tau = 1: alpha = 1/3 / (1/3 + 2/3) * 1/2 = 1/6.
    np.testing.assert_allclose([pace.model_for(client).item() for client in range(3)], [9.0, 4.0, 4.0], rtol=1e-6)
    pace.updated(update(1, 2, vector(3), vector(5), samples=1), 3.0)
    assert pace.model_for(1).item() == 5.0  # its own training takes the place of what was there
    assert pace.passed[1] == 0


@pytest.mark.parametrize("seed", range(3))
def test_without_decay_the_buffer_of_an_estimated_row_is_the_mean_by_its_weights(seed):
    rng = np.random.default_rng(seed)
    pace = begun(make_strategy("pace", {"staleness": "constant", "gamma": 0.4}), torch.zeros(3), clients=4)
    handed_in = {}
    for number in range(30):
        client = int(rng.integers(4)) if number else 0
        trained = torch.from_numpy(rng.normal(size=3)).float()
        pace.updated(update(client, pace.t, torch.zeros(3), trained, samples=client + 1), float(number))
        handed_in = {0: [(client, trained)]} if client == 0 else {0: [*handed_in[0], (client, trained)]}
        row = pace.graph.weights[0]
        taken = np.array([row[sender] for sender, _ in handed_in[0]], float)
        wanted = taken / taken.sum() @ torch.stack([model for _, model in handed_in[0]]).double().numpy()
        np.testing.assert_allclose(pace.model_for(0), wanted, rtol=1e-4, atol=1e-5)


def test_samples_decide_until_a_row_is_estimated():
    graph = Graph()
    for client in range(3):
        graph.join(client)
    assert graph.p().tolist() == pytest.approx([1 / 3] * 3)
    graph.samples[:2] = [30, 10]
    assert graph.p().tolist() == pytest.approx([0.5, 1 / 6, 1 / 3])  # client 2 is taken to have 20
    assert graph.column(0).tolist() == pytest.approx([0.5] * 3)
    assert graph.own().tolist() == pytest.approx([0.5, 1 / 6, 1 / 3])
    graph.put(1, np.array([0, 1]), np.array([0.25, 0.75]))
    assert graph.column(0).tolist() == pytest.approx([0.5, 0.25, 0.5])
    assert graph.own()[1] == 0.75


def test_a_row_without_any_weight_on_oneself_or_others_moves_nothing():
    pace = begun(make_strategy("pace", {}), vector(0.0), clients=2)
    pace.graph.put(1, np.arange(2), np.zeros(2))
    assert pace._count_passed(0).tolist() == [0.0, 0.0]


def test_numbers_of_clients_that_never_came_play_no_part():
    graph = Graph()
    for client in (5, 0, 9):
        graph.join(client)
    assert graph.clients().tolist() == [0, 5, 9]
    assert graph.p()[[0, 5, 9]].tolist() == pytest.approx([1 / 3] * 3)
    assert graph.p().sum() == pytest.approx(1)
    pace = begun(make_strategy("pace", {"gamma": 0.0}), vector(0.0), clients=1)
    pace.joined(50, 0.0)
    pace.updated(update(0, 0, vector(0), vector(6)), 1.0)
    np.testing.assert_allclose(pace.collaboration()[0, [0, 50]], 0.5)
    assert pace.model_for(50).item() == 3.0
    assert pace.model_for(20).item() == 0.0


@pytest.mark.parametrize("name", ["pace", "fedamp", "pfedgraph-async"])
def test_whoever_comes_late_begins_with_the_mean_of_what_others_know(name):
    method = begun(make_strategy(name, {"proximal": 1.0} if name == "fedamp" else {}), vector(0.0), clients=2)
    list(method.ready(0, 0.0) or ())
    list(method.ready(1, 0.0) or ())
    method.updated(update(0, 0, vector(0), vector(1), samples=1), 1.0)
    method.updated(update(1, 0, vector(0), vector(1), samples=3), 1.0)
    method.joined(2, 2.0)
    assert method.model_for(2).item() == pytest.approx(1.0, abs=0.3)
    before = method.model_for(0).item()
    method.left(0, 3.0)
    method.joined(0, 4.0)
    assert method.model_for(0).item() == before  # who comes back finds its model


@pytest.mark.parametrize("weights", ["pfedgraph", "fedamp", "fedsac"])
@pytest.mark.parametrize("form", ["", "-async", "-pace"])
def test_models_too_large_to_be_compared_do_not_spoil_those_of_others(weights, form):
    name = "pace" if (weights, form) == ("pfedgraph", "-pace") else weights + form
    method = begun(make_strategy(name, {}), torch.zeros(3), clients=3)
    orders = [order for client in range(3) for order in method.ready(client, 0.0) or ()]
    for order, scale in zip(orders, (1.0, 1e25, 2.0), strict=True):
        method.updated(update(order.client, order.version, order.weights, scale * torch.ones(3)), 1.0)
    for client in range(3):
        list(method.ready(client, 2.0) or ())
        assert torch.isfinite(method.model_for(client)).all()
    rows = method.collaboration()
    np.testing.assert_allclose(np.nansum(rows, axis=1), 1, rtol=1e-5)
    assert rows[1].tolist() == [0, 1, 0]
    assert rows[2][1] == 0
    assert rows[2][0] > 0  # those whose models can be compared go on learning from each other


def test_a_client_is_handed_a_copy_that_no_later_update_changes():
    pace = begun(make_strategy("pace", {}), vector(0.0), clients=2)
    (order,) = pace.ready(1, 0.0)
    pace.updated(update(0, 0, vector(0), vector(6)), 1.0)
    assert order.weights.item() == 0.0
    assert pace.model_for(1).item() == 3.0
    assert order.objective.cosine == 0.01


# Its multicast.


def in_training(omega, budget, clients=6, size=2):
    """PACE with every client but the last in training since version 0; the last hands in again and again."""
    pace = begun(make_strategy("pace", {"omega": omega, "budget": budget}), torch.zeros(size), clients)
    for client in range(clients):
        list(pace.ready(client, 0.0))

    def hand_in(now):
        return list(pace.updated(update(clients - 1, pace.t, torch.zeros(size), torch.ones(size)), now))

    return pace, hand_in


@given(st.integers(0, 60), st.floats(0, 40))
@settings(max_examples=40)
def test_a_multicast_keeps_to_its_budget_and_resets_staleness(budget, omega):
    with warnings.catch_warnings(action="ignore"):
        pace, hand_in = in_training(omega, budget)
    model_bytes = 8
    for now in range(1, 12):
        before = np.where(pace.started < 0, 0, pace.t + 1 - pace.started)
        sends = hand_in(float(now))
        assert len(sends) * model_bytes <= budget
        stalest = np.sort(before[:-1])[::-1][: budget // model_bytes]
        assert bool(sends) == bool((stalest**2).sum() > omega)
        for send in sends:
            assert send.version == pace.t == pace.started[send.client]
            assert torch.equal(send.weights, pace.model_for(send.client))
            assert pace.tau(update(send.client, send.version, send.weights, send.weights)) == 0


def test_the_stalest_come_first_and_go_on_from_their_own_buffers():
    pace, hand_in = in_training(omega=7, budget=16)
    pace.started[:5] = [0, -1, 0, 0, 0]
    pace.t = 1
    pace.started[[0, 2]] = 1
    sends = hand_in(1.0)  # staleness is now 1, -, 1, 2, 2 and two models are allowed
    assert [send.client for send in sends] == [3, 4]
    assert all(isinstance(send, Send) for send in sends)
    assert [send.client for send in hand_in(2.0)] == [0, 2]  # 2, -, 2, 1, 1


def test_who_left_or_handed_in_gets_no_multicast():
    pace, hand_in = in_training(omega=0, budget=1000)
    pace.left(0, 0.5)
    pace.updated(update(1, 0, torch.zeros(2), torch.ones(2)), 0.6)
    assert [send.client for send in hand_in(1.0)] == [2, 3, 4]


def test_a_budget_smaller_than_one_model_is_warned_about():
    with pytest.warns(UserWarning, match="8 bytes, more than the multicast budget of 7"):
        begun(make_strategy("pace", {"budget": 7}), torch.zeros(2))
    with warnings.catch_warnings(action="error"):
        begun(make_strategy("pace", {"budget": 0}), torch.zeros(2))
