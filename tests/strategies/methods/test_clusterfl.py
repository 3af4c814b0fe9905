"""ClusterFL: divergences, clusters by them, FedAvg inside; clients that leave, come or answer rubbish."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from polytempo.api import simulate
from polytempo.strategies import make_strategy
from polytempo.strategies.base.participation import EVERYONE, Quota
from polytempo.strategies.methods.clusterfl import SOFT_LABELS, ClusterFL, by_average_linkage, parts_by_cluster
from polytempo.testing import begun, update, vector

LEFT, RIGHT = [0.9, 0.1], [0.2, 0.8]


def clusterfl(clients=4, participation=EVERYONE, **given):
    return begun(ClusterFL(**{"k": 2, "recluster_every": 1} | given), vector(0), clients, participation)


def a_round(strategy, clients, answers, models, now=0.0, samples=None):
    """These clients say ready and hand in these answers and models; the orders they had."""
    orders = [order for client in clients for order in strategy.ready(client, now) or ()]
    for order in orders:
        handed = update(
            order.client,
            order.version,
            order.weights,
            vector(models[order.client]),
            (samples or {}).get(order.client, 1),
        )
        strategy.updated(replace(handed, answers={SOFT_LABELS: answers[order.client]}), now + 1)
    return orders


def homes(strategy, clients=4):
    return [strategy.cluster_of(client) for client in range(clients)]


def test_average_linkage_joins_who_is_near_on_average():
    points = np.array([0.0, 1.0, 10.0, 11.0, 13.0])
    distances = np.abs(points[:, None] - points)
    parts = by_average_linkage([5, 6, 7, 8, 9], distances, 2)
    assert sorted(parts) == [[5, 6], [7, 8, 9]]
    assert by_average_linkage([3, 4], distances[:2, :2], 4) == [[3], [4]]


def test_a_part_goes_on_as_the_cluster_that_most_of_it_comes_from():
    home = {0: 1, 1: 1, 2: 0, 3: 0, 4: 0}
    assert parts_by_cluster([[0, 1, 2], [3, 4]], home, [0, 1]) == {1: [0, 1, 2], 0: [3, 4]}


def test_clients_with_like_outputs_share_a_model_that_is_their_mean():
    strategy = clusterfl()
    answers = {0: LEFT, 1: RIGHT, 2: LEFT, 3: RIGHT}
    orders = a_round(strategy, range(4), answers, {0: 1, 1: 10, 2: 5, 3: 30}, samples={0: 3, 3: 3})
    assert all(order.questions == (SOFT_LABELS,) for order in orders)
    assert homes(strategy)[0] == homes(strategy)[2] != homes(strategy)[1] == homes(strategy)[3]
    assert [strategy.model_for(client).item() for client in range(4)] == pytest.approx([2, 25, 2, 25])


def test_a_client_that_has_become_unlike_moves_and_takes_its_model_along():
    strategy = clusterfl()
    answers = {0: LEFT, 1: RIGHT, 2: LEFT, 3: RIGHT}
    a_round(strategy, range(4), answers, {0: 1, 1: 10, 2: 1, 3: 10})
    before = homes(strategy)
    a_round(strategy, range(4), answers | {2: RIGHT}, {0: 2, 1: 10, 2: 4, 3: 10}, now=2.0)
    assert homes(strategy) == [before[0], before[1], before[1], before[1]]
    assert strategy.model_for(0).item() == 2
    assert strategy.model_for(2).item() == pytest.approx(8)


def test_clients_are_clustered_only_every_so_many_rounds():
    strategy = clusterfl(recluster_every=2)
    answers = {0: LEFT, 1: RIGHT, 2: LEFT, 3: RIGHT}
    a_round(strategy, range(4), answers, {0: 1, 1: 2, 2: 3, 3: 6})
    assert len(set(homes(strategy))) == 1
    assert strategy.model_for(0).item() == 3
    a_round(strategy, range(4), answers, {0: 1, 1: 2, 2: 3, 3: 6}, now=2.0)
    assert len(set(homes(strategy))) == 2


def test_who_is_not_in_the_round_stays_where_it_is():
    strategy = clusterfl()
    answers = {0: LEFT, 1: RIGHT, 2: LEFT, 3: RIGHT}
    a_round(strategy, range(4), answers, {0: 1, 1: 10, 2: 1, 3: 10})
    before = homes(strategy)
    strategy.participation.quota = Quota(count=2)
    orders = a_round(strategy, range(2), answers, dict.fromkeys(range(4), 7.0), now=2.0)
    assert {order.client for order in orders} == {0, 1}
    assert homes(strategy) == before
    assert strategy.model_for(2).item() == 7


def test_one_cluster_is_fedavg():
    strategy = clusterfl(k=1)
    a_round(strategy, range(4), dict.fromkeys(range(4), LEFT), {0: 1, 1: 2, 2: 3, 3: 6})
    assert strategy.model_for(0).item() == 3


def test_a_client_that_answers_rubbish_stays_where_it_is_and_hurts_nobody():
    strategy = clusterfl()
    answers = {0: LEFT, 1: RIGHT, 2: [math.nan, 1], 3: [0.2, 0.3, 0.5]}
    a_round(strategy, range(4), answers, {0: 1, 1: 10, 2: 1, 3: 1})
    assert strategy.cluster_of(0) != strategy.cluster_of(1)
    assert set(strategy.clusters.newcomers) == {2, 3}
    assert torch.isfinite(strategy.model_for(2)).all()


def test_where_nobody_answers_this_is_fedavg():
    strategy = clusterfl()
    a_round(strategy, range(4), dict.fromkeys(range(4)), {0: 1, 1: 2, 2: 3, 3: 6})
    assert [strategy.model_for(client).item() for client in range(4)] == [3] * 4


def test_a_client_that_left_is_no_member_and_what_it_handed_in_counts():
    strategy = clusterfl()
    orders = [order for client in range(4) for order in strategy.ready(client, 0.0) or ()]
    for order in orders[:3]:
        handed = update(order.client, 0, order.weights, vector(4))
        strategy.updated(replace(handed, answers={SOFT_LABELS: LEFT}), 1.0)
    list(strategy.left(0, 1.0) or ())
    list(strategy.left(3, 2.0) or ())
    assert sorted(client for members in strategy.clusters.members.values() for client in members) == [1, 2]
    assert 0 not in strategy.soft_labels
    assert strategy.model_for(1).item() == 4


def test_planted_groups_are_found():
    run = simulate("clusterfl", data="digits", clients=12, partition="groups:4", updates=180, seed=1)
    assert run.result["ari"] > 0.85


def test_clusterfl_says_that_it_is_reconstructed():
    assert ClusterFL.reconstructed
    assert make_strategy("clusterfl", {}).__doc__.startswith("Reconstructed")
