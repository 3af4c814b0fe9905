"""IFCA and its asynchronous form: who chose which model, and what becomes of it."""

import numpy as np
import torch

from polytempo.core.events import Update
from polytempo.strategies import Setting
from polytempo.strategies.methods.ifca import IFCA, IFCAAsync
from polytempo.testing import begun, simulator, vector
from polytempo_client.model.schema import Schema


def test_ifca_begins_with_the_initial_model_and_permutations_of_its_tensors():
    strategy, schema = IFCA(k=3), Schema(("a", "b"), ((8,), (8,)), 16)
    initial = torch.arange(16.0)
    strategy.begin(Setting(initial, schema, seed=5))
    first, *others = [branch.weights for branch in strategy.clusters.branches.values()]
    assert torch.equal(first, initial)
    for weights in others:
        assert not torch.equal(weights, initial)
        assert torch.equal(weights[:8].sort().values, initial[:8])
        assert torch.equal(weights[8:].sort().values, initial[8:])
    assert not torch.equal(*others)


def chose(client, cluster, version, start, weights, samples=1):
    return Update(client, version, start, weights, samples, steps=1, chosen=cluster)


def test_ifca_averages_each_model_over_those_who_chose_it_whatever_their_samples():
    strategy = begun(IFCA(k=3), vector(1, 2), clients=3)
    orders = [order for client in range(3) for order in strategy.ready(client, 0.0) or ()]
    assert all(len(order.candidates.models) == 3 for order in orders)
    first, second, third = orders[0].candidates.models
    strategy.updated(chose(0, 1, 0, second, second + vector(4, 0), samples=1), 1.0)
    strategy.updated(chose(1, 1, 0, second, second + vector(0, 4), samples=3), 1.0)
    strategy.updated(chose(2, 0, 0, first, first + vector(1, 1)), 1.0)
    models = [branch.weights for branch in strategy.clusters.branches.values()]
    assert torch.allclose(models[0], first + vector(1, 1))
    assert torch.allclose(models[1], second + vector(2, 2))
    assert torch.equal(models[2], third)
    assert [strategy.cluster_of(client) for client in range(3)] == [1, 1, 0]
    assert [branch.version for branch in strategy.clusters.branches.values()] == [1, 1, 0]


def test_ifca_leaves_out_what_is_held_back():
    strategy = begun(IFCA(k=1), vector(1, 2), clients=2)
    (first, second) = [order for client in range(2) for order in strategy.ready(client, 0.0) or ()]
    strategy.updated(chose(0, 0, 0, first.weights, first.weights + vector(4, 0)), 1.0)
    strategy.updated(chose(1, 0, 0, second.weights, vector(9, 9)).as_held_back(second.weights), 1.0)
    assert torch.allclose(strategy.model_for(0), vector(5, 2))


def test_an_ifca_client_that_left_before_the_round_closed_is_no_member():
    strategy = begun(IFCA(k=2), vector(1, 2), clients=2)
    orders = [order for client in range(2) for order in strategy.ready(client, 0.0) or ()]
    start = orders[0].weights
    strategy.updated(chose(0, 0, 0, start, start), 1.0)
    strategy.left(0, 1.0)
    strategy.updated(chose(1, 0, 0, start, start), 1.0)
    assert list(strategy.clusters.members[0]) == [1]


def test_ifca_async_counts_staleness_in_versions_of_the_chosen_model():
    strategy = begun(IFCAAsync(k=2, mixing=0.5), vector(0, 0), clients=3)
    strategy.updated(chose(0, 0, 0, vector(0, 0), vector(1, 1)), 1.0)
    strategy.updated(chose(0, 0, 1, vector(0, 0), vector(1, 1)), 2.0)
    fresh, stale = (chose(1, cluster, 0, vector(0, 0), vector(0, 0)) for cluster in (1, 0))
    assert (strategy.tau(fresh), strategy.tau(stale)) == (0, 2)
    strategy.updated(chose(1, 1, 0, vector(0, 0), vector(2, 0)), 3.0)
    assert torch.allclose(strategy.model_for(1), vector(1, 0))
    assert torch.allclose(strategy.model_for(0), vector(0.75, 0.75))


def test_simulated_clients_of_ifca_start_from_the_model_with_the_lowest_loss():
    seen = []

    class Watched(IFCA):
        def aggregate(self, updates, now):
            seen.extend(updates)
            super().aggregate(updates, now)

    sim = simulator(Watched(k=3), clients=4)
    sim.run()
    assert len(seen) == 12
    assert all(one.chosen == int(np.argmin(one.answers["losses"])) for one in seen)
