"""FedAMP, pFedGraph and FedSAC: other weights for the collaboration graph, and other ways to use it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from polytempo.core.errors import StrategyError, UserError
from polytempo.core.model.rows import Sums
from polytempo.core.orders import Work
from polytempo.strategies import make_strategy
from polytempo.strategies.base.participation import Quota
from polytempo.strategies.base.served import served_models
from polytempo.strategies.methods.fedsac import SUBSPACE, mean_angles
from polytempo.testing import begun, simulator, update, vector


def test_a_diverged_client_of_fedsac_is_refused_and_the_run_goes_on():
    sim = simulator(make_strategy("fedsac-async", {}), work=Work(steps=4, epochs=None, batch_size=4, lr=1e30))
    with pytest.raises(UserError, match="Training diverges"):
        sim.run()


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
