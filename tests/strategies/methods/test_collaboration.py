"""The collaboration graph and the methods that learn by it, on cases small enough for pencil and paper."""

import warnings
from dataclasses import replace

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from polytempo.core import rows
from polytempo.core.errors import StrategyError, UserError
from polytempo.core.orders import Send, Work
from polytempo.core.rows import Compare, Sums, meet_rows, sum_rows
from polytempo.strategies import make_strategy
from polytempo.strategies.base.served import served_models
from polytempo.strategies.methods.fedsac import SUBSPACE, mean_angles
from polytempo.strategies.methods.pfedgraph import unlikeness
from polytempo.strategies.parts.graph import Graph, project_simplex
from polytempo.strategies.parts.participation import Quota
from support.building import begun, simulator, update, vector

finite = st.floats(-3, 3, allow_subnormal=False)
vectors = st.integers(1, 8).flatmap(lambda n: arrays(float, n, elements=finite))


# One vector meets the rows of a matrix.


@pytest.mark.parametrize("size", [1, 15, 1024, 5000])
@pytest.mark.parametrize("rows", [1, 8, 21])
def test_rows_are_compared_as_they_were_and_then_moved(rows, size):
    rng = torch.Generator().manual_seed(0)
    before, origin = torch.randn(rows, size, generator=rng), torch.randn(size, generator=rng)
    v, shares = torch.randn(size, generator=rng), np.linspace(0, 1, rows)
    exact, target, centre = before.double(), v.double(), origin.double()
    wanted = {
        Compare.NOTHING: torch.zeros(rows),
        Compare.PRODUCTS: (exact - centre) @ (target - centre),
        Compare.SQUARES: (exact - target).square().sum(1),
        Compare.ABSOLUTES: (exact - target).abs().sum(1),
    }
    for compare, values in wanted.items():
        matrix = before.clone()
        sums = meet_rows(matrix, v, compare, origin, shares)
        np.testing.assert_allclose(sums.values, values, rtol=1e-4, atol=1e-3)
        squares = (exact - centre).square().sum(1) if compare == Compare.PRODUCTS else torch.zeros(rows)
        np.testing.assert_allclose(sums.row_squares, squares, rtol=1e-4)
        moved = exact + torch.from_numpy(shares)[:, None] * (target - exact)
        np.testing.assert_allclose(matrix, moved, rtol=1e-4, atol=1e-5)
        assert torch.equal(matrix[0], before[0])  # its share is 0


@pytest.mark.parametrize("size", [3, 5000])
def test_rows_are_summed_by_their_weights(size):
    matrix = torch.randn(7, size, generator=torch.Generator().manual_seed(0))
    weights = np.array([0.5, 0, 0.25, 0, 0, 0, -1])
    np.testing.assert_allclose(sum_rows(weights, matrix), weights @ matrix.double().numpy(), rtol=1e-4, atol=1e-5)


def test_many_rows_give_the_same_bits_on_any_number_of_threads(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    matrix, v = torch.randn(30, 3000, generator=rng), torch.randn(3000, generator=rng)
    monkeypatch.setattr(rows.os, "sched_getaffinity", lambda _: {0, 1, 2})
    found = []
    for worth_threads in (1, 2**30):
        monkeypatch.setattr(rows, "WORTH_THREADS", worth_threads)
        moved = matrix.clone()
        sums = meet_rows(moved, v, Compare.PRODUCTS, matrix[3], np.linspace(0, 1, 30))
        found.append([sums.values, sums.row_squares, moved.numpy(), sum_rows(sums.values, matrix).numpy()])
    for alone, together in zip(*found, strict=True):
        np.testing.assert_array_equal(alone, together)


def test_vectors_and_shares_of_the_wrong_length_are_refused():
    matrix = torch.zeros(3, 2)
    for wrong in (
        lambda: meet_rows(matrix, vector(1), Compare.PRODUCTS),
        lambda: meet_rows(matrix, vector(1, 2), Compare.PRODUCTS, vector(1)),
        lambda: meet_rows(matrix, vector(1, 2), Compare.PRODUCTS, None, np.zeros(2)),
        lambda: sum_rows(np.zeros(2), matrix),
    ):
        with pytest.raises(ValueError, match="expected"):
            wrong()


def test_without_origin_products_are_those_of_the_rows():
    sums = meet_rows(torch.tensor([[1.0, 2.0], [0.0, 3.0]]), vector(2, 1), Compare.PRODUCTS)
    assert sums.values.tolist() == [4.0, 3.0]
    assert sums.row_squares.tolist() == [5.0, 9.0]


# Rows of the graph.


@given(vectors)
@settings(max_examples=60)
def test_the_projection_is_what_a_qp_solver_finds(v):
    w = cvxpy.Variable(len(v))
    cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(w) - 2 * v @ w), [w >= 0, cvxpy.sum(w) == 1]).solve()
    np.testing.assert_allclose(project_simplex(v), w.value, atol=1e-5)


@given(vectors, finite)
def test_the_projection_lies_on_the_simplex_and_does_not_see_a_constant_shift(v, shift):
    w = project_simplex(v)
    assert (w >= 0).all()
    assert w.sum() == pytest.approx(1)
    np.testing.assert_allclose(project_simplex(v + shift), w, atol=1e-9)
    np.testing.assert_allclose(project_simplex(w), w, atol=1e-9)


def sums_of(compare, models, place):
    return meet_rows(torch.from_numpy(models).float(), torch.from_numpy(models[place]).float(), compare)


models = arrays(float, (4, 5), elements=st.floats(-2, 2, width=16).map(lambda x: round(x, 2)))


@given(models, st.sampled_from([0.5, 2.0, 4.0]))
def test_cosines_do_not_see_lengths_and_the_other_metrics_no_common_scale(m, scale):
    longer = m.copy()
    longer[2] *= scale
    cosine = unlikeness("cosine", 0, sums_of(Compare.PRODUCTS, m, 0))
    np.testing.assert_allclose(unlikeness("cosine", 0, sums_of(Compare.PRODUCTS, longer, 0)), cosine, atol=1e-5)
    assert cosine[0] == -1
    assert (np.abs(cosine) <= 1 + 1e-6).all()
    for metric, compare in (("inner", Compare.PRODUCTS), ("l1", Compare.ABSOLUTES), ("l2", Compare.SQUARES)):
        found = unlikeness(metric, 0, sums_of(compare, m, 0))
        np.testing.assert_allclose(unlikeness(metric, 0, sums_of(compare, m * scale, 0)), found, atol=1e-4)


@given(models, arrays(float, 5, elements=st.integers(-3, 3).map(float)))
def test_distances_do_not_see_a_common_shift(m, shift):
    m = np.round(m)
    for metric, compare in (("l1", Compare.ABSOLUTES), ("l2", Compare.SQUARES)):
        here, there = (unlikeness(metric, 1, sums_of(compare, models, 1)) for models in (m, m + shift))
        np.testing.assert_allclose(there, here, atol=1e-5)
        assert here[1] == 0


def test_a_zero_vector_is_neither_like_nor_unlike():
    sums = meet_rows(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), vector(1, 0), Compare.PRODUCTS)
    assert unlikeness("cosine", 0, sums).tolist() == [-1.0, 0.0]


def test_the_inner_product_is_divided_by_its_mean_over_the_row():
    found = unlikeness("inner", 0, Sums(np.array([5.0, 1.0, -3.0]), np.zeros(3)))
    assert found.tolist() == pytest.approx([-5 / 3, -1 / 3, 1.0])


def test_a_row_follows_from_likeness_and_sizes():
    pace = begun(make_strategy("pace", {"gamma": 0.8}), vector(0, 0), clients=3)
    pace.updated(update(1, 0, vector(0, 0), vector(0, 2), samples=2), 1.0)
    pace.updated(update(0, 0, vector(0, 0), vector(1, 0), samples=2), 2.0)
    # theta_0 = (1, 0); phi_1 = (0, 2), phi_2 = a bit of (0, 2): s = (-1, 0, 0), p = 1/3 each. p - gamma/2 s is
    # (1/3 + .4, 1/3, 1/3), less .4/3.
    np.testing.assert_allclose(pace.collaboration()[0], [0.6, 0.2, 0.2], atol=1e-6)


# PACE's buffers.


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


def test_a_diverged_client_of_fedsac_is_refused_and_the_run_goes_on():
    sim = simulator(make_strategy("fedsac-async", {}), work=Work(steps=4, epochs=None, batch_size=4, lr=1e30))
    with pytest.raises(UserError, match="Training diverges"):
        sim.run()


def test_a_client_is_handed_a_copy_that_no_later_update_changes():
    pace = begun(make_strategy("pace", {}), vector(0.0), clients=2)
    (order,) = pace.ready(1, 0.0)
    pace.updated(update(0, 0, vector(0), vector(6)), 1.0)
    assert order.weights.item() == 0.0
    assert pace.model_for(1).item() == 3.0
    assert order.objective.cosine == 0.01


# PACE's multicast.


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


# The other weights, and the other ways to use them.


def test_attention_falls_with_distance():
    method = begun(make_strategy("fedamp-async", {"sigma": 4.0}), vector(0.0), clients=3)
    for client, weights in enumerate((0.0, 2.0, 4.0)):
        method.updated(update(client, 0, vector(0), vector(weights)), 1.0)
    attention = np.exp([-1.0, -4.0])
    row = [0.7, *(0.3 * attention / attention.sum())]
    np.testing.assert_allclose(method.model_for(0).item(), 2 * row[1] + 4 * row[2], rtol=1e-6)
    method.joined(3, 2.0)
    (order,) = method.ready(0, 2.0)
    np.testing.assert_allclose(method.collaboration()[0], [*row, 0.0], rtol=1e-6)
    assert order.objective.proximal == 1.0


def test_models_that_are_far_from_all_others_still_have_neighbours():
    method = begun(make_strategy("fedamp", {}), vector(0.0), clients=1)
    sums = Sums(np.array([0.0, 1e6, 1e6 + 10]), np.zeros(3))
    row = method.weigh(0, sums, np.full(3, 1 / 3), np.arange(3))
    assert row.sum() == pytest.approx(1)
    assert row[1] > row[2] > 0


def test_complementary_features_weigh_beside_likeness():
    east, north = [[1.0, 0.0]], [[0.0, 1.0]]
    method = begun(make_strategy("fedsac", {"gamma": 0.0, "beta": 0.2}), vector(0.0), clients=3)
    method.subspaces = {0: np.array(east), 1: np.array(east), 2: np.array(north)}
    row = method.weigh(0, Sums(np.ones(3), np.ones(3)), np.full(3, 1 / 3), np.arange(3))
    # c = (-1, -1, 0): p + beta/2 c is (1/3 - .1, 1/3 - .1, 1/3), plus .2/3.
    np.testing.assert_allclose(row, [0.3, 0.3, 0.4])


def test_principal_angles_are_those_between_subspaces_not_between_bases():
    plane, turned = np.eye(3)[:2], np.array([[0.6, 0.8, 0.0], [-0.8, 0.6, 0.0]])
    upright = np.eye(3)[[0, 2]]
    angles = mean_angles(0, [0, 1, 2, 3, 4], {0: plane, 1: turned, 2: upright, 4: plane[:1]})
    assert angles[0] == 0
    assert angles[1] == pytest.approx(0, abs=1e-6)
    assert angles[2] == pytest.approx(np.pi / 4)  # one direction is common, one is upright
    assert angles[3] == angles[4] == pytest.approx(angles[1:3].mean())  # no answer, an answer of another shape


@pytest.mark.parametrize("answer", [None, "north", [[1.0], [1.0, 2.0]], [], [1.0, 2.0], [[float("nan")]]])
def test_a_client_without_a_sensible_answer_only_misses_the_angles(answer):
    method = begun(make_strategy("fedsac-pace", {}), vector(0.0), clients=2)
    said = replace(update(0, 0, vector(0), vector(1)), answers={} if answer is None else {SUBSPACE: answer})
    method.updated(said, 1.0)
    assert method.subspaces == {}
    assert method.collaboration()[0].sum() == pytest.approx(1)


def test_clients_answer_with_the_directions_of_their_features():
    sim = simulator(make_strategy("fedsac-async", {}))
    sim.run()
    bases = list(sim.strategy.subspaces.values())
    assert len(bases) == 3
    for basis in bases:
        assert basis.shape == (3, 4)
        np.testing.assert_allclose(basis @ basis.T, np.eye(3), atol=1e-5)
    assert SUBSPACE in sim.strategy.questions


def test_members_of_a_round_learn_from_each_other_only():
    method = begun(make_strategy("fedamp", {"sigma": 1.0}), vector(0.0), 3, Quota(count=2, choice="round-robin"))
    orders = [order for client in range(3) for order in method.ready(client, 0.0) or ()]
    assert [order.client for order in orders] == [0, 1]
    method.updated(update(0, 0, vector(0), vector(1)), 1.0)
    assert method.model_for(0).item() == 0.0  # the round is still open
    method.updated(update(1, 0, vector(0), vector(2)), 2.0)
    assert [method.model_for(client).item() for client in range(3)] == pytest.approx([1.3, 1.7, 0.0])
    assert np.isnan(method.collaboration()[2]).all()
    np.testing.assert_allclose(method.collaboration()[0], [0.7, 0.3, 0.0])


def test_a_naive_newcomer_gets_the_mean_by_samples():
    method = begun(make_strategy("pfedgraph-async", {}), vector(0.0), clients=3)
    assert method.model_for(2).item() == 0.0
    method.updated(update(0, 0, vector(0), vector(1), samples=1), 1.0)
    method.updated(update(1, 0, vector(0), vector(5), samples=3), 1.0)
    assert method.model_for(2).item() == pytest.approx(4.0)
    assert method.model_for(7).item() == pytest.approx(4.0)


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


def test_the_graph_is_written_with_the_served_models():
    method = begun(make_strategy("pace", {}), vector(0.0), clients=2)
    method.updated(update(0, 0, vector(0), vector(6)), 1.0)
    written = served_models(method, [0, 1])
    np.testing.assert_array_equal(written["collaboration"], method.collaboration())
    assert torch.isnan(written["collaboration"][1]).all()
    assert "collaboration" not in served_models(begun(make_strategy("fedasync", {}), vector(0.0)), [0])


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (np.array([1.0, 1.0]), "a row that sums to 2; expected 2 weights"),
        (
            np.array([1.5, -0.5]),
            "a row that sums to 1; expected 2 weights, one for each of the clients named, none neg",
        ),
        (np.array([np.nan, 1.0]), "a row that sums to nan"),
        (np.array([1.0]), "the shape \\(1,\\)"),
    ],
)
@pytest.mark.parametrize("name", ["pace", "fedamp", "pfedgraph-async"])
def test_a_row_that_is_none_is_refused_with_its_method_and_client(name, row, words, monkeypatch):
    method = begun(make_strategy(name, {}), vector(0.0), clients=2)
    monkeypatch.setattr(type(method), "weigh", lambda *_: row)

    def hand_in_and_ask_again():
        for order in [order for client in range(2) for order in method.ready(client, 0.0) or ()]:
            method.updated(update(order.client, 0, order.weights, vector(1.0)), 1.0)
        list(method.ready(0, 2.0) or ())

    with pytest.raises(StrategyError, match=f"{type(method).__name__}.weigh gave client 0 {words}"):
        hand_in_and_ask_again()
