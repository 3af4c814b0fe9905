"""CASA, CASA+ and the ablations, against numbers worked out by hand and against properties that always hold."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polytempo import simulate
from polytempo.core.errors import UserError
from polytempo.core.events import Update
from polytempo.core.orders import Train
from polytempo.core.state import digest, pack, unpack
from polytempo.strategies import Strategy, make_strategy
from polytempo.strategies.methods import casa
from polytempo.strategies.methods.casa import Casa
from polytempo.strategies.methods.casa_plus import CasaPlus
from polytempo.strategies.parts.clusters import Clusters
from polytempo.strategies.parts.decay import bi_level, omega
from polytempo.testing import begun, update, vector

SIZE = 12


# The method, told by hand what happens.


class World:
    """Clients of planted groups: what one hands in is the model it got plus its group's direction plus a little of its
    own. ``visit`` lets one client come by with an update and get its next order."""

    def __init__(self, strategy: Strategy, clients: int, groups: int, noise: float = 0.1) -> None:
        self.strategy, self.groups, self.noise = strategy, groups, noise
        self.rng = torch.Generator().manual_seed(0)
        self.orders: dict[int, Train] = {}
        begun(strategy, torch.randn(SIZE, generator=self.rng), clients=0)
        for client in range(clients):
            self.join(client)

    def join(self, client: int) -> None:
        self.strategy.joined(client, 0.0)
        self.ready(client)

    def ready(self, client: int) -> None:
        for order in self.strategy.ready(client, 0.0) or ():
            assert isinstance(order, Train)
            self.orders[order.client] = order

    def visit(self, client: int, now: float = 0.0) -> Update:
        order = self.orders.pop(client)
        direction = torch.zeros(SIZE)
        direction[client % self.groups] = 1.0
        step = direction + self.noise * torch.randn(SIZE, generator=self.rng)
        handed_in = update(client, order.version, order.weights, order.weights + step)
        self.strategy.updated(handed_in, now)
        self.ready(client)
        return handed_in

    def rounds(self, clients: list[int], count: int) -> None:
        for _ in range(count):
            for client in clients:
                self.visit(client)


def plan(strategy: Strategy, updates: int) -> None:
    strategy.setting = replace(strategy.setting, planned_updates=updates)


def homes(strategy: Casa) -> list[list[int]]:
    return sorted(sorted(members) for members in strategy.clusters.members.values())


def test_casa_mixes_by_the_decay_of_its_cluster():
    strategy = Casa()
    begun(strategy, vector(0.0, 0.0), clients=5)
    strategy.updated(update(0, 0, vector(0.0, 0.0), vector(3.0, 0.0)), 0.0)
    alpha = 2 * omega(1, 0.001) / 3  # log2(5 + 3) = 3
    assert strategy.model_for(4).tolist() == pytest.approx([3 * alpha, 0.0])
    late = update(1, -9, vector(0.0, 0.0), vector(0.0, 3.0))  # staleness 10, threshold 5
    strategy.updated(late, 0.0)
    shrunk = 2 * omega(2, 0.001) / 3 / math.sqrt(10)
    assert strategy.model_for(4).tolist() == pytest.approx([3 * alpha * (1 - shrunk), 3 * shrunk])


@pytest.mark.parametrize("preset", ["ours", "paper"])
def test_casa_finds_the_planted_groups_and_says_why(preset):
    strategy = Casa(preset=preset)
    world = World(strategy, clients=12, groups=3)
    world.rounds(list(range(12)), 4)
    why = strategy.splits()[0].why
    assert why["decay"] < why["eigengap"] ** 0.15 == pytest.approx(why["threshold"])
    assert homes(strategy) == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


# How it compares, buffers and assigns.


@pytest.mark.parametrize("seed", [0, 1])
def test_a_simulated_casa_has_pure_clusters_and_beats_one_model_for_all(seed):
    world = {"clients": 20, "updates": 1000, "seed": seed}
    run = simulate("casa", **world)
    assert run.purity == 1.0
    assert run.accuracy > simulate("fedasync", **world).accuracy + 0.05


def test_what_casa_compares_is_the_cosine_of_the_deltas():
    strategy = Casa(budget=100)
    world = World(strategy, clients=4, groups=2, noise=0.4)
    one = world.visit(0)
    other = world.visit(3)
    expected = float(torch.cosine_similarity(one.delta, other.delta, dim=0))
    assert strategy.similarity()[0, 3] == strategy.similarity()[3, 0] == pytest.approx(expected, abs=1e-6)
    assert np.isnan(strategy.similarity()[1, 2])


def test_casa_can_compare_raw_weights():
    strategy = Casa(budget=100, source="weights")
    world = World(strategy, clients=4, groups=2)
    one, other = world.visit(0), world.visit(3)
    expected = float(torch.cosine_similarity(one.weights, other.weights, dim=0))
    assert strategy.similarity()[0, 3] == pytest.approx(expected, abs=1e-6)


def test_updates_whose_starts_lie_too_far_apart_are_not_compared():
    strategy = Casa(budget=100)
    world = World(strategy, clients=4, groups=2)
    for _ in range(5):  # client 0 goes on while client 1 still trains from version 0; threshold 4
        world.visit(0)
    world.visit(2)
    assert [entry.client for entry in strategy.buffers.of(1)] == [0, 2]
    before = strategy.buffers.of(1)[0]
    assert before.vector is strategy.buffers.of(3)[0].vector
    world.visit(0)
    assert strategy.buffers.of(1)[0] is before  # holds one of client 0 already
    strategy.buffers.take(1)
    world.visit(0)
    assert strategy.buffers.of(1) == []  # version 6 against 0


def test_the_eigenproblem_waits_until_enough_pairs_are_compared(monkeypatch):
    solved = []
    monkeypatch.setattr(casa, "eigengap", lambda graph: solved.append(len(graph)) or (1, 0.0))
    strategy = Casa(budget=1000, coverage=0.9)
    world = World(strategy, clients=10, groups=2)
    world.rounds(list(range(5)), 3)
    assert not solved  # 10 of 45 pairs
    world.rounds(list(range(10)), 1)
    assert solved
    count = len(solved)
    strategy.buffers.keep(np.zeros(len(strategy.buffers), bool))
    world.visit(0)
    assert len(solved) == count  # nothing new was compared


@pytest.mark.parametrize("budget", [0, 7, 40])
def test_the_budget_of_a_run_is_never_exceeded(budget):
    strategy = Casa(budget=budget)
    world = World(strategy, clients=12, groups=3)
    for client in np.random.default_rng(0).integers(0, 12, 150).tolist():
        world.visit(client)
        assert len(strategy.buffers) <= budget


def test_the_budget_is_ten_entries_for_each_client_unless_given():
    strategy = Casa(coverage=1.0)
    world = World(strategy, clients=30, groups=3)
    for client in range(20):
        world.visit(client)
    assert len(strategy.buffers) == 300


def test_newcomers_land_in_the_cluster_of_their_group():
    strategy = Casa()
    world = World(strategy, clients=12, groups=3)
    world.rounds(list(range(12)), 4)
    for newcomer in (12, 13, 14, 15):
        world.join(newcomer)
    assert list(strategy.clusters.newcomers) == [12, 13, 14, 15]
    world.rounds(list(range(12)), 1)
    for newcomer in (12, 13, 14, 15):
        world.visit(newcomer)
    assert not strategy.clusters.newcomers
    for members in strategy.clusters.members.values():
        assert len({client % 3 for client in members}) == 1


def test_a_newcomer_with_an_empty_buffer_joins_the_largest_cluster():
    strategy = Casa()
    world = World(strategy, clients=10, groups=2)
    world.rounds(list(range(10)), 4)
    assert strategy.splits()
    largest = strategy.clusters.largest()
    newcomer = 10 + (next(iter(strategy.clusters.members[largest])) + 1) % 2  # of the other group
    world.join(newcomer)
    assert newcomer in strategy.clusters.newcomers
    strategy.buffers.take(newcomer)
    world.visit(newcomer)
    assert strategy.clusters.home[newcomer] == largest


def test_a_client_that_was_compared_only_with_one_that_left_splits_nothing():
    strategy = Casa(coverage=1.0)
    world = World(strategy, clients=14, groups=3)
    world.rounds(list(range(12)), 1)
    world.visit(13)
    strategy.buffers.keep((strategy.buffers.owners == 12) & (strategy.buffers.senders == 13))
    strategy.left(13, 1.0)
    strategy.coverage, strategy.fresh[0] = 0.8, 100  # it may split as soon as anyone looks
    world.visit(12)
    assert not strategy.splits()
    assert strategy.clusters.home[12] == 0
    world.visit(0)
    world.visit(1)
    assert strategy.splits()


def test_a_member_that_was_never_compared_is_a_newcomer_after_a_split():
    strategy = Casa(coverage=0.8)
    world = World(strategy, clients=13, groups=3)
    world.rounds(list(range(12)), 3)
    assert strategy.splits()
    assert list(strategy.clusters.newcomers) == [12]
    world.visit(12)
    assert strategy.clusters.home[12] == strategy.clusters.home[0]


@settings(max_examples=20)
@given(st.data())
def test_whatever_happens_the_clusters_partition_the_clients_that_are_there(data):
    budget = data.draw(st.integers(5, 60))
    name = data.draw(st.sampled_from(["casa", "casa+", "casa-d"]))
    strategy = make_strategy(name, {"coverage": 0.5, "budget": budget})
    world, there = World(strategy, clients=6, groups=2), set(range(6))
    plan(strategy, 60)
    for step in range(data.draw(st.integers(10, 60))):
        client = data.draw(st.integers(0, 8))
        if client not in there:
            world.join(client)
            there.add(client)
        elif data.draw(st.integers(0, 9)) == 0 and len(there) > 1:
            strategy.left(client, float(step))
            world.orders.pop(client, None)
            there.discard(client)
        else:
            world.visit(client, float(step))
        clusters: Clusters = strategy.clusters  # type: ignore[attr-defined]
        held = [client for members in clusters.members.values() for client in members]
        assert sorted([*held, *clusters.newcomers]) == sorted(there)
        matrix = strategy.similarity()
        assert matrix is not None
        np.testing.assert_array_equal(matrix, matrix.T)
        owners = strategy.buffers.owners  # type: ignore[attr-defined]
        assert set(owners.tolist()) <= there
        assert len(owners) <= budget


@pytest.mark.parametrize("preset", ["ours", "paper"])
def test_casa_goes_on_from_a_saved_state(preset):
    strategy, other = Casa(preset=preset), Casa(preset=preset)
    world = World(strategy, clients=12, groups=3)
    world.rounds(list(range(12)), 2)
    begun(other, torch.zeros(SIZE), clients=0)
    other.load_state(unpack(*pack(strategy.save_state())))
    orders = dict(world.orders)
    for client in range(12):
        order = orders[client]
        handed_in = update(client, order.version, order.weights, order.weights + torch.arange(SIZE) * client)
        strategy.updated(handed_in, 1.0)
        other.updated(handed_in, 1.0)
    assert digest(strategy.save_state()) == digest(other.save_state())


# Sparse training.


def test_the_share_left_out_is_that_of_the_paper():
    strategy = CasaPlus(sparsity=0.6)
    begun(strategy, torch.zeros(4))
    assert strategy.share_left_out(0.4, 0.1) == 0.0  # nothing planned
    plan(strategy, 100)
    strategy.t = 1
    assert strategy.share_left_out(0.4, 0.1) == pytest.approx(0.18)  # 0.3 x 0.3 x 2
    strategy.t = 51
    assert strategy.share_left_out(0.4, 0.1) == pytest.approx(0.09)
    strategy.t = 101
    assert strategy.share_left_out(0.4, 0.1) == pytest.approx(0.0)
    strategy.t = 1
    strategy.sparsity = 100.0
    assert strategy.share_left_out(0.4, 0.1) < 1


def test_only_what_a_stale_client_trained_is_mixed_in():
    strategy = CasaPlus()
    begun(strategy, torch.ones(4))
    strategy.masks[0] = torch.tensor([True, False, True, False])
    strategy.updated(update(0, 0, torch.ones(4), vector(3.0, 9.0, 5.0, 9.0)), 0.0)
    alpha = bi_level(1, 3, 2.0, 0.001).cluster
    assert strategy.model_for(1).tolist() == pytest.approx([1 + 2 * alpha, 1, 1 + 4 * alpha, 1])


def test_a_stale_client_is_given_a_mask_and_a_punctual_one_is_not():
    strategy = CasaPlus(sparsity=2.0)
    begun(strategy, torch.zeros(SIZE), clients=3)
    plan(strategy, 100)
    order: Any
    strategy.updated(update(0, 0, torch.zeros(SIZE), torch.arange(SIZE).float()), 0.0)
    (order,) = strategy.ready(0, 0.0) or ()
    assert order.mask is None
    strategy.updated(update(1, -20, torch.zeros(SIZE), torch.arange(SIZE).float()), 0.0)
    (order,) = strategy.ready(1, 0.0) or ()
    decay = bi_level(2, 3, 2.0, 0.001)
    share = strategy.share_left_out(decay.cluster, decay.client(21))
    assert order.mask.tolist() == [False] * int(share * SIZE) + [True] * (SIZE - int(share * SIZE))
    assert int(share * SIZE) > 0


def test_sparse_training_saves_time_and_bytes():
    world = {"clients": 10, "updates": 200, "devices": "slow:0.3x10", "seed": 1}
    whole = simulate("casa+", parameters={"sparsity": 0.0}, **world)
    sparse = simulate("casa+", parameters={"sparsity": 2.5}, **world)
    assert simulate("casa", **world).accuracy == whole.accuracy  # S0 = 0 is CASA
    assert sparse.bytes_up < whole.bytes_up
    assert sparse.virtual_time < whole.virtual_time


# Ablations.


def test_casa_without_clusters_is_one_model_with_casas_decay():
    strategy = make_strategy("casa-c", {})
    begun(strategy, vector(0.0), clients=5)
    strategy.updated(update(0, 0, vector(0.0), vector(3.0)), 0.0)
    assert float(strategy.model_for(1)) == pytest.approx(2 * omega(1, 0.001))  # 3 x 2 Omega / log2(8)
    assert strategy.splits() == ()
    assert strategy.similarity() is None


def test_casa_without_decay_counts_every_update_the_same():
    strategy = make_strategy("casa-d", {})
    begun(strategy, vector(0.0), clients=5)
    strategy.updated(update(0, 0, vector(0.0), vector(1.0)), 0.0)
    strategy.updated(update(1, -50, vector(0.0), vector(1.0)), 0.0)
    assert float(strategy.model_for(1)) == pytest.approx(0.3 + 0.7 * 0.3)


def test_casa_without_decay_still_finds_clusters():
    strategy = make_strategy("casa-d", {})
    world = World(strategy, clients=12, groups=3)
    world.rounds(list(range(12)), 4)
    assert len(strategy.splits()[0].parts) == 3


@pytest.mark.parametrize("wrong", [{"alpha0": 2.1}, {"kappa": 0.0}])
@pytest.mark.parametrize("name", ["casa", "casa-c"])
def test_a_decay_with_which_alpha_could_reach_one_is_refused(name, wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        make_strategy(name, wrong)
