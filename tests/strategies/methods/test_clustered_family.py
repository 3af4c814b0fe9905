"""CFL, IFCA, ICFL and their asynchronous forms against hand-computed cases of two dimensions, and on planted groups."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from contract.reference import sattler
from polytempo import simulate
from polytempo.core.state import digest, load, save
from polytempo.strategies import make_strategy
from polytempo.strategies.base.participation import Quota
from polytempo.strategies.methods import cfl
from polytempo.strategies.methods.cfl import CFL, CFLAsync, bipartition
from polytempo.strategies.methods.icfl import ICFL, ICFLAsync
from polytempo.strategies.parts.cosines import cosines
from polytempo.strategies.parts.staleness import Constant
from polytempo.testing import begun, update, vector

APART = {0: (2, 0), 1: (-2, 0.1), 2: (2, 0.2), 3: (-2, -0.1)}
"""Deltas of four clients: 0 and 2 pull one way, 1 and 3 the other."""


def play_round(strategy, moves, samples=1, absent=()):
    """Everybody starts, and hands in its start plus its move; who is absent leaves instead."""
    clients = list(strategy.participation.members)
    orders = [order for client in clients for order in strategy.ready(client, 0.0) or ()]
    for order in orders:
        if order.client in absent:
            strategy.left(order.client, 1.0)
        else:
            moved = order.weights + vector(*moves[order.client])
            strategy.updated(update(order.client, order.version, order.weights, moved, samples), 1.0)
    return orders


def hand_in(strategy, client, move, samples=1):
    """An asynchronous client trains from the model that it would be served."""
    order = strategy.order_for(client, 0.0)
    strategy.updated(
        update(client, order.version, order.weights, order.weights + vector(*move), samples), now=float(client)
    )


def parts(strategy):
    return sorted(sorted(members) for members in strategy.clusters.members.values())


# CFL.


def test_cfl_splits_a_cluster_whose_clients_pull_apart():
    strategy = begun(CFL(), vector(5, 5), clients=4)
    play_round(strategy, APART)
    assert parts(strategy) == [[0, 2], [1, 3]]
    split = strategy.splits()[0]
    assert split.cluster == 0
    assert split.why["mean_norm"] == pytest.approx(0.05)
    assert split.why["max_norm"] == pytest.approx(4.04**0.5)
    for branch in strategy.clusters.branches.values():
        assert torch.allclose(branch.weights, vector(5, 5.05))
        assert branch.version == 1


def test_the_children_of_a_split_go_their_own_ways_from_the_next_version_on():
    strategy = begun(CFL(), vector(0, 0), clients=4)
    play_round(strategy, APART)
    orders = play_round(strategy, APART)
    assert [order.version for order in orders] == [1] * 4
    assert strategy.model_for(0)[0] > 1
    assert strategy.model_for(1)[0] < -1
    assert strategy.clusters.branch(0).version == 2
    assert len(strategy.splits()) == 1


@pytest.mark.parametrize(
    "moves",
    [
        {0: (2, 0), 1: (2, 0), 2: (2, 0), 3: (-1, 0)},  # mean norm 1.25: still under way
        {0: (0.6, 0), 1: (-0.6, 0), 2: (0.6, 0), 3: (-0.6, 0)},  # max norm .6: at rest for everybody
    ],
)
def test_cfl_does_not_split_a_cluster_under_way_or_at_rest(moves):
    strategy = begun(CFL(), vector(0, 0), clients=4)
    play_round(strategy, moves)
    assert parts(strategy) == [[0, 1, 2, 3]]
    assert strategy.clusters.branches[0].version == 1


def test_cfl_weighs_deltas_by_samples():
    strategy = begun(CFL(), vector(0, 0), clients=2)
    start = vector(0, 0)
    for client in range(2):
        list(strategy.ready(client, 0.0) or ())
    strategy.updated(update(0, 0, start, vector(4, 0), samples=3), 1.0)
    strategy.updated(update(1, 0, start, vector(0, 4), samples=1), 1.0)
    assert torch.allclose(strategy.model_for(0), vector(3, 1))


def test_cfl_does_not_split_where_members_of_different_parts_are_alike():
    """Six directions, 60 degrees apart: whatever the parts, some neighbours are in different ones."""
    around = {client: (math.cos(angle), math.sin(angle)) for client, angle in enumerate(np.arange(6) * math.pi / 3)}
    strategy = begun(CFL(), vector(0, 0), clients=6)
    play_round(strategy, around)
    assert parts(strategy) == [[0, 1, 2, 3, 4, 5]]  # sqrt((1 - .5) / 2) = .5, which is gamma_max
    strategy = begun(CFL(gamma_max=0.49), vector(0, 0), clients=6)
    play_round(strategy, around)
    assert len(parts(strategy)) == 2
    assert strategy.splits()[0].why["cross_cosine"] == pytest.approx(0.5)


def test_two_clients_of_cfl_stay_together_however_far_apart_they_pull():
    strategy = begun(CFL(), vector(0, 0), clients=2)
    play_round(strategy, {0: (2, 0), 1: (-2, 0)})
    assert parts(strategy) == [[0, 1]]


@given(arrays(np.float64, (6, 2), elements=st.floats(-2, 2).map(lambda x: round(x, 2))), st.floats(0.05, 0.95))
def test_cfls_bipartition_and_verdict_are_those_of_the_paper(deltas, gamma_max):
    assume(np.linalg.norm(deltas, axis=1).min() > 0.1)
    similarity = sattler.cosines(deltas)
    found, alpha = bipartition(similarity)
    assert sorted(index for part in found for index in part) == list(range(6))
    assert min(map(len, found)) >= 1
    assert alpha == pytest.approx(sattler.least_cross_similarity(similarity))
    assume(abs(gamma_max - np.sqrt((1 - alpha) / 2)) > 1e-3)
    assume(abs(np.linalg.norm(deltas.mean(0)) - 0.8) > 1e-3)
    strategy = begun(CFL(eps1=0.8, eps2=0.5, gamma_max=gamma_max), vector(0, 0), clients=6)
    play_round(strategy, dict(enumerate(deltas)))
    assume(abs(np.linalg.norm(deltas, axis=1).max() - 0.5) > 1e-3)
    assert bool(strategy.splits()) == sattler.has_to_split(deltas, np.ones(6), 0.8, 0.5, gamma_max)


def test_cfl_does_not_split_a_cluster_of_which_some_took_no_part():
    strategy = begun(CFL(), vector(0, 0), clients=5, participation=Quota(count=4))
    play_round(strategy, APART | {4: (2, 0)})
    assert parts(strategy) == [[0, 1, 2, 3, 4]]


def test_a_split_holds_those_who_are_still_there():
    strategy = begun(CFL(), vector(0, 0), clients=4)
    play_round(strategy, APART, absent=[3])
    assert parts(strategy) == [[0, 1, 2]]  # the mean is (2/3, .1): under way
    strategy = begun(CFL(eps1=1), vector(0, 0), clients=4)
    play_round(strategy, APART, absent=[3])
    assert parts(strategy) == [[0, 2], [1]]
    assert 3 not in strategy.clusters.home


@pytest.mark.parametrize("cls", [CFL, ICFL])
def test_a_newcomer_of_a_round_joins_the_cluster_it_is_most_like(cls):
    strategy = begun(cls(), vector(0, 0), clients=4)
    play_round(strategy, APART)
    play_round(strategy, APART)
    assert parts(strategy) == [[0, 2], [1, 3]]
    strategy.joined(9, 2.0)
    play_round(strategy, APART | {9: (-9, 0)})
    assert parts(strategy) == [[0, 2], [1, 3, 9]]


def test_a_newcomer_far_from_home_does_not_split_the_cluster_that_it_joins():
    strategy = begun(CFL(), vector(0, 0), clients=4)
    play_round(strategy, APART)
    strategy.joined(9, 2.0)
    play_round(strategy, {0: (0.1, 0), 1: (-0.1, 0), 2: (0.1, 0), 3: (-0.1, 0), 9: (-9, 0)})
    assert parts(strategy) == [[0, 2], [1, 3, 9]]


def test_a_newcomers_first_update_is_not_averaged_into_another_clusters_model():
    strategy = begun(CFL(), vector(0, 0), clients=4)
    play_round(strategy, APART)
    strategy.joined(9, 2.0)
    still = {client: (0.1 if client % 2 == 0 else -0.1, 0) for client in APART}
    play_round(strategy, still | {9: (-3, 0)})
    assert torch.allclose(strategy.model_for(9), vector(-0.1, 0.05))


def test_a_newcomer_that_left_before_the_round_closed_belongs_nowhere():
    strategy = begun(CFL(), vector(0, 0), clients=4)
    play_round(strategy, APART)
    strategy.joined(9, 2.0)
    orders = [order for client in (9, 0, 1, 2, 3) for order in strategy.ready(client, 2.0) or ()]
    for order in sorted(orders, key=lambda order: -order.client):  # 9 is the first to hand in
        strategy.updated(update(order.client, 1, order.weights, order.weights + vector(1, 0)), 3.0)
        if order.client == 9:
            strategy.left(9, 3.0)
    assert parts(strategy) == [[0, 2], [1, 3]]
    assert strategy.clusters.branch(0).version == 2


def test_the_similarity_of_a_synchronous_form_is_that_of_the_last_round():
    strategy = begun(CFL(), vector(0, 0), clients=4)
    assert strategy.similarity() is None
    play_round(strategy, APART)
    assert np.allclose(strategy.similarity(), cosines([vector(*APART[client]) for client in range(4)]))


# CFL-Async.


def test_cfl_async_mixes_by_the_decayed_share():
    strategy = begun(CFLAsync(mixing=0.4), vector(0, 0), clients=2)
    strategy.updated(update(0, 0, vector(0, 0), vector(1, 0)), 1.0)
    strategy.updated(update(1, 0, vector(0, 0), vector(0, 1)), 1.0)
    share = 0.4 / 2**0.5
    assert torch.allclose(strategy.model_for(0), vector(0.4 * (1 - share), share))


def test_cfl_async_splits_when_the_last_member_has_handed_in():
    strategy = begun(CFLAsync(mixing=0.5, staleness=Constant()), vector(0, 0), clients=4)
    for client in range(3):
        hand_in(strategy, client, APART[client])
        assert parts(strategy) == [[0, 1, 2, 3]]
    model = strategy.model_for(3)
    hand_in(strategy, 3, APART[3])
    assert parts(strategy) == [[0, 2], [1, 3]]
    why = strategy.splits()[0].why
    assert why["mean_norm"] == pytest.approx(0.05)
    assert why["max_norm"] == pytest.approx(4.04**0.5)
    for branch in strategy.clusters.branches.values():
        assert torch.allclose(branch.weights, model + 0.5 * vector(*APART[3]))
        assert branch.version == 4


def test_cfl_async_asks_for_a_larger_delta_than_cfl():
    strategy = begun(CFLAsync(fewest_members=2), vector(0, 0), clients=2)
    for client, move in enumerate([(0.9, 0), (-0.9, 0)]):
        hand_in(strategy, client, move)
    assert parts(strategy) == [[0, 1]]
    assert CFL().eps2 < 0.9


def test_cfl_async_looks_again_when_all_could_have_handed_in_once_more(monkeypatch):
    looked = []
    monkeypatch.setattr(cfl, "bipartition", lambda cosines: looked.append(len(cosines)) or ([[0], [1, 2, 3]], 0.9))
    strategy = begun(CFLAsync(), vector(0, 0), clients=4)
    for client in (0, 1, 2, 3):
        hand_in(strategy, client, APART[client])
    assert looked == [4]  # and too alike
    for client in (0, 1, 2):
        hand_in(strategy, client, APART[client])
    assert looked == [4]
    hand_in(strategy, 3, APART[3])
    assert looked == [4, 4]


def test_only_the_latest_delta_of_a_client_counts():
    strategy = begun(CFLAsync(fewest_members=2), vector(0, 0), clients=2)
    hand_in(strategy, 0, (3, 0))
    hand_in(strategy, 0, (-2, 0))
    hand_in(strategy, 1, (-2, 0.1))
    assert parts(strategy) == [[0, 1]]
    hand_in(strategy, 1, (2, 0))
    assert parts(strategy) == [[0], [1]]


def test_who_is_away_is_not_waited_for_and_counts_again_when_it_has_handed_in():
    strategy = begun(CFLAsync(), vector(0, 0), clients=3)
    hand_in(strategy, 2, (4, 0))
    strategy.left(2, 1.0)
    hand_in(strategy, 0, (0.5, 0))
    assert torch.allclose(strategy.latest.sums[0], vector(0.5, 0).double())
    strategy.joined(2, 2.0)
    assert list(strategy.latest.vectors) == [0]
    hand_in(strategy, 2, (4, 0))
    assert torch.allclose(strategy.latest.sums[0], vector(4.5, 0).double())


def test_a_client_whose_cluster_split_while_it_was_away_is_placed_anew():
    strategy = begun(CFLAsync(fewest_members=2), vector(0, 0), clients=4)
    strategy.left(3, 0.0)
    for client in (0, 1):
        hand_in(strategy, client, APART[client])
    strategy.left(2, 0.0)
    hand_in(strategy, 1, APART[1])
    assert parts(strategy) == [[0], [1]]
    strategy.joined(3, 5.0)
    assert 3 in strategy.clusters.newcomers
    versions = {cluster: branch.version for cluster, branch in strategy.clusters.branches.items()}
    hand_in(strategy, 3, (-1, 0))
    assert parts(strategy) == [[0], [1, 3]]
    assert {cluster: branch.version for cluster, branch in strategy.clusters.branches.items()} == versions


def test_latest_vectors_are_shared_not_copied():
    strategy = begun(ICFLAsync(), vector(1, 1), clients=1)
    one = update(0, 0, vector(1, 1), vector(2, 1))
    strategy.updated(one, 1.0)
    assert strategy.latest.vectors[0] is one.weights


# ICFL.


def test_icfls_threshold_rises_from_its_start_towards_one():
    strategy = ICFL()
    assert strategy.threshold(0) == pytest.approx(0.85)
    assert strategy.threshold(25) == pytest.approx(1 - 0.15 / np.e)
    assert ICFLAsync().threshold(2500) == pytest.approx(strategy.threshold(25))


MODELS = {0: (1, 0), 1: (0, 1), 2: (1, 0.1), 3: (0.1, 1)}
"""Moves from the origin; six cosines with a mean of .398."""


def test_icfl_splits_a_cluster_whose_models_are_less_alike_than_the_threshold():
    strategy = begun(ICFL(rate=0), vector(0, 0), clients=4)
    play_round(strategy, MODELS)
    assert parts(strategy) == [[0, 2], [1, 3]]
    cosine = 1 / 1.01**0.5
    expected = (2 * cosine + 0 + 2 * 0.1 * cosine + 0.2 / 1.01) / 6
    assert strategy.splits()[0].why == pytest.approx({"similarity": expected, "threshold": 0.85})
    assert torch.allclose(strategy.model_for(1), vector(0.525, 0.525))


def test_icfl_leaves_a_cluster_whole_that_is_alike_enough():
    strategy = begun(ICFL(start=0.39, rate=0), vector(0, 0), clients=4)
    play_round(strategy, MODELS)
    assert parts(strategy) == [[0, 1, 2, 3]]


def test_icfl_counts_rounds_and_its_asynchronous_form_counts_updates():
    one, other = begun(ICFL(start=0.1), vector(0, 0), clients=4), begun(ICFLAsync(start=0.1), vector(0, 0), clients=4)
    play_round(one, MODELS)
    for client in range(4):
        hand_in(other, client, MODELS[client])
    assert (one.t, other.t) == (1, 4)


def test_icfl_async_splits_when_the_last_member_has_handed_in():
    strategy = begun(ICFLAsync(rate=0, mixing=1e-6), vector(0, 0), clients=4)
    for client in range(4):
        assert parts(strategy) == [[0, 1, 2, 3]]
        hand_in(strategy, client, MODELS[client])
    assert parts(strategy) == [[0, 2], [1, 3]]
    assert strategy.splits()[0].why["threshold"] == pytest.approx(0.85)
    assert {branch.version for branch in strategy.clusters.branches.values()} == {4}
    strategy.joined(7, 9.0)
    strategy.clusters.branch(0).replace(vector(1, 0))
    strategy.clusters.branch(1).replace(vector(0, 1))
    strategy.updated(update(7, 0, vector(1, 0), vector(1, 3)), 9.0)
    assert strategy.cluster_of(7) == strategy.cluster_of(1)


@pytest.mark.parametrize("name", ["icfl", "icfl-async"])
def test_reconstructed_methods_say_so(name):
    assert make_strategy(name, {}).__doc__.splitlines()[0].startswith("Reconstructed")


# All of them.

PLANTED = {
    "cfl": {"parameters": {"eps1": 0.6}},
    "ifca": {"parameters": {"k": 2}},
    "cfl-async": {"parameters": {"eps1": 0.6}},
    "ifca-async": {"parameters": {"k": 2}},
}


@pytest.mark.parametrize("name", PLANTED)
def test_two_planted_groups_are_found(name):
    run = simulate(name, partition="groups:2", clients=8, devices="homogeneous", updates=200, seed=1, **PLANTED[name])
    assert run.result["ari"] == 1


@pytest.mark.parametrize("name", ["cfl", "cfl-async", "icfl", "icfl-async", "ifca", "ifca-async"])
def test_a_saved_state_goes_on_through_splits_newcomers_and_departures(name, tmp_path):
    given = {"rate": 0.0} if name.startswith("icfl") else {}
    one, other = (begun(make_strategy(name, given), vector(0, 0), clients=4) for _ in range(2))
    moves = APART if name.startswith("cfl") else MODELS
    moves = moves | {9: (-1, 0.5)}

    def go_on(strategy):
        strategy.joined(9, 2.0)
        go(strategy)
        strategy.left(2, 3.0)
        go(strategy)

    def go(strategy):
        if name.endswith("async"):
            for client in strategy.participation.members:
                hand_in(strategy, client, moves[client])
        else:
            play_round(strategy, moves)

    go(one)
    save(one.save_state(), tmp_path / "state")
    other.load_state(load(tmp_path / "state"))
    for strategy in (one, other):
        go_on(strategy)
    assert digest(other.save_state()) == digest(one.save_state())
    assert name.startswith("ifca") or len(one.splits()) >= 1
