"""CASA, its parts and its ablations, against numbers worked out by hand and against properties that always hold."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from building import begun, update, vector
from polytempo.core.branch import Branch
from polytempo.core.events import Update
from polytempo.core.orders import Train
from polytempo.core.state import digest, pack, unpack
from polytempo.strategies import Strategy, casa, make_strategy
from polytempo.strategies.casa import Casa
from polytempo.strategies.casa_plus import CasaPlus, all_but_smallest
from polytempo.strategies.parts.buffers import Buffers, Sample, within_budget
from polytempo.strategies.parts.clusters import Clusters
from polytempo.strategies.parts.decay import bi_level, omega
from polytempo.strategies.parts.similarity import Similarity, affinity, coverage
from polytempo.strategies.parts.spectral import DENSE, eigengap, spectral_parts

NAN = math.nan
SIZE = 12


# Decay.


def test_the_decay_of_a_hundred_clients_begins_at_three_tenths():
    decay = bi_level(t=1, members=100, alpha0=2.0, kappa=0.001)
    assert decay.cluster == pytest.approx(0.299101, abs=1e-6)  # 2 x 0.99997038 / log2(103)
    assert decay.threshold == pytest.approx(100.002962, abs=1e-6)  # 100 (2 - 0.99997038)


def test_the_decay_falls_with_time():
    assert omega(1000, 0.001) == pytest.approx(math.e / 2.8)
    assert omega(50_000, 0.001) == pytest.approx(0.227417, abs=1e-6)
    decay = bi_level(t=50_000, members=5, alpha0=2.0, kappa=0.001)
    assert decay.cluster == pytest.approx(2 * 0.227417 / 3, abs=1e-6)
    assert decay.threshold == pytest.approx(5 * (2 - 0.227417), abs=1e-5)


def test_an_update_counts_less_only_beyond_the_threshold():
    decay = bi_level(t=1, members=100, alpha0=2.0, kappa=0.001)
    assert decay.client(0) == decay.client(100) == decay.cluster
    assert decay.client(144) == pytest.approx(decay.cluster / 12)


@given(st.integers(1, 10**6), st.integers(1, 10**5), st.floats(0.01, 2), st.floats(1e-5, 1), st.integers(0, 10**6))
def test_alpha_is_always_below_one(t, members, alpha0, kappa, tau):
    decay = bi_level(t, members, alpha0, kappa)
    assert 0 <= decay.client(tau) <= decay.cluster < 1


# Spectral clustering.


def blocks(*sizes: int, inside: float = 1.0, across: float = 0.0) -> np.ndarray:
    of = np.repeat(np.arange(len(sizes)), sizes)
    graph = np.where(of[:, None] == of, inside, across)
    np.fill_diagonal(graph, 1)
    return graph


def test_the_eigengap_counts_the_blocks_of_a_graph():
    assert eigengap(blocks(4, 3, 5)) == (3, pytest.approx(1.0))
    assert eigengap(blocks(6))[0] == 1


def test_the_eigengap_is_that_of_the_laplacian():
    # Two pairs, 1/2 inside and 1/10 across: degrees 1.7, eigenvalues of A 1.7, 1.3, 0.5, 0.5.
    parts, gap = eigengap(blocks(2, 2, inside=0.5, across=0.1))
    assert (parts, gap) == (2, pytest.approx((1.3 - 0.5) / 1.7))


def test_many_clients_have_the_same_eigengap_as_few():
    rng = np.random.default_rng(0)
    noise = rng.uniform(0, 0.1, (DENSE + 50,) * 2)
    graph = np.clip(blocks(100, 80, DENSE - 130, inside=0.6, across=0.1) + noise + noise.T, 0, 1)
    np.fill_diagonal(graph, 1)
    scale = 1 / np.sqrt(graph.sum(1))
    smallest = np.sort(np.linalg.eigvalsh(np.eye(len(graph)) - graph * scale[:, None] * scale))[:10]
    gaps = np.diff(smallest)
    assert eigengap(graph) == (gaps.argmax() + 1, pytest.approx(gaps.max()))


def test_spectral_parts_are_the_blocks():
    order = np.random.default_rng(0).permutation(12)
    graph = blocks(4, 3, 5, inside=0.7, across=0.05)[np.ix_(order, order)]
    of = np.repeat([0, 1, 2], [4, 3, 5])[order]
    found = spectral_parts(graph, 3)
    assert sorted(place for part in found for place in part) == list(range(12))
    assert sorted(sorted(part) for part in found) == sorted(np.flatnonzero(of == k).tolist() for k in range(3))


# Similarity.


def test_coverage_is_the_share_of_compared_pairs():
    block = np.array([[1, 0.5, NAN], [0.5, 1, NAN], [NAN, NAN, 1]])
    assert coverage(block) == pytest.approx(1 / 3)
    assert coverage(np.ones((1, 1))) == 1.0


def test_negative_cosines_of_deltas_count_as_nothing_and_missing_ones_as_the_mean():
    block = np.array([[1, -0.4, 0.6], [-0.4, 1, NAN], [0.6, NAN, 1]])
    graph = affinity(block, "delta")
    assert graph == pytest.approx(np.array([[1, 0, 0.6], [0, 1, 0.3], [0.6, 0.3, 1]]), abs=1e-5)


def test_cosines_of_weights_are_stretched_over_the_block():
    block = np.array([[1, 0.98, 0.96], [0.98, 1, NAN], [0.96, NAN, 1]])
    assert affinity(block, "weights") == pytest.approx(np.array([[1, 1, 0], [1, 1, 0.5], [0, 0.5, 1]]), abs=1e-5)
    assert (affinity(np.full((3, 3), 0.97), "weights") == 1).all()


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 9), unique=True), st.floats(-1, 1)), max_size=20))
def test_the_similarity_stays_symmetric(comparisons):
    similar = Similarity()
    for client, others, value in comparisons:
        similar.make_room(1 + max([client, *others]))
        others = [other for other in others if other != client]
        similar.set(client, others, [value] * len(others))
    np.testing.assert_array_equal(similar.values, similar.values.T)
    assert (np.diagonal(similar.values) == 1).all()


# Buffers.


def test_entries_within_the_budget_are_new_pairs_then_slow_owners_then_old_entries():
    compared = np.array([True, False, False, False, True])
    alpha = np.array([0.1, 0.3, 0.2, 0.2, 0.1])
    kept = [np.flatnonzero(within_budget(budget, compared, alpha)).tolist() for budget in range(5)]
    assert kept == [[], [2], [2, 3], [1, 2, 3], [0, 1, 2, 3]]


Offer = tuple[int, list[int], int]
OFFERS = st.lists(st.tuples(st.integers(0, 7), st.lists(st.integers(0, 7), unique=True), st.integers(0, 20)))


@given(OFFERS)
def test_buffers_keep_their_budget_hold_nobody_twice_and_copy_nothing(offers):
    buffers, made = Buffers(), []
    for sender, owners, budget in offers:
        sample = Sample.of(sender, torch.randn(3), samples=1)
        made.append(sample.vector)
        buffers.empty(sender)
        buffers.offer(sample, np.array([owner for owner in owners if owner != sender], np.int64))
        if len(buffers) > budget:
            size = len(buffers)
            buffers.keep(within_budget(budget, np.zeros(size, bool), np.zeros(size)))
            assert len(buffers) == budget
        assert not buffers.of(sender)
        for owner in range(8):
            senders = [entry.client for entry in buffers.of(owner)]
            assert len(senders) == len(set(senders))
        assert all(any(entry.vector is vector for vector in made) for entry in buffers.held.values())
        assert sorted(buffers.held) == np.unique(buffers.numbers).tolist()


# Clusters.


def test_parts_of_a_split_begin_where_the_cluster_was():
    clusters = Clusters({0: Branch(vector(1.0, 2.0), version=7)})
    for client in range(5):
        clusters.join(client)
    clusters.split(0, [[0, 3], [1, 2, 4]], now=9.0, why={"eigengap": 0.5})
    assert {cluster: list(members) for cluster, members in clusters.members.items()} == {1: [0, 3], 2: [1, 2, 4]}
    assert all(branch.version == 7 and branch.weights.tolist() == [1, 2] for branch in clusters.branches.values())
    assert clusters.splits[0].parts == (1, 2)
    assert clusters.splits[0].members == ((0, 3), (1, 2, 4))
    clusters.branches[1].mix(vector(3.0, 2.0), 0.5)
    assert clusters.branches[2].weights.tolist() == [1, 2]


@pytest.mark.parametrize("parts", [[[0, 1]], [[0, 1], [1, 2]], [[0], [1, 2, 3]]])
def test_a_split_that_is_no_partition_is_refused(parts):
    clusters = Clusters({0: Branch(vector(0.0))})
    for client in range(3):
        clusters.join(client)
    with pytest.raises(ValueError, match="no partition"):
        clusters.split(0, parts, now=0.0, why={})


def test_who_was_away_when_its_cluster_split_is_a_newcomer():
    clusters = Clusters({0: Branch(vector(0.0))})
    for client in range(4):
        clusters.join(client)
    clusters.leave(1)
    clusters.leave(3)
    clusters.join(3)
    clusters.split(0, [[0], [2, 3]], now=0.0, why={})
    clusters.join(1)
    assert list(clusters.newcomers) == [1]
    assert clusters.of(1) == 2
    clusters.assign(1, 1)
    assert not clusters.newcomers
    assert list(clusters.members[1]) == [0, 1]


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


def test_casa_finds_the_planted_groups_and_says_why():
    strategy = Casa()
    world = World(strategy, clients=12, groups=3)
    world.rounds(list(range(12)), 4)
    first = strategy.splits()[0]
    assert sorted(map(sorted, first.members)) == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert first.why["decay"] < first.why["eigengap"] ** 0.15 == pytest.approx(first.why["threshold"])
    assert {client % 3 for client in homes(strategy)[0]} == {homes(strategy)[0][0] % 3}


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
    strategy.buffers.empty(1)
    world.visit(0)
    assert strategy.buffers.of(1) == []  # version 6 against 0


def test_the_eigenproblem_waits_until_enough_pairs_are_compared(monkeypatch):
    solved = []
    monkeypatch.setattr(casa, "eigengap", lambda graph: solved.append(len(graph)) or (1, 0.0))
    strategy = Casa(budget=1000)
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
    world.rounds([0, 2, 4, 6, 8, 1, 3], 6)
    largest = strategy.clusters.largest()
    world.join(10)
    strategy.buffers.empty(10)
    world.visit(10)
    assert strategy.clusters.home[10] == largest


def test_a_member_that_was_never_compared_is_a_newcomer_after_a_split():
    strategy = Casa(coverage=0.8)
    world = World(strategy, clients=13, groups=3)
    world.rounds(list(range(12)), 3)
    assert strategy.splits()
    assert list(strategy.clusters.newcomers) == [12]
    world.visit(12)
    assert strategy.clusters.home[12] == strategy.clusters.home[0]


@settings(deadline=None, max_examples=20)
@given(st.data())
def test_whatever_happens_the_clusters_partition_the_clients_that_are_there(data):
    strategy = make_strategy(data.draw(st.sampled_from(["casa", "casa+", "casa-d"])), {"coverage": 0.5})
    world, there = World(strategy, clients=6, groups=2), set(range(6))
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


def test_casa_goes_on_from_a_saved_state():
    strategy, other = Casa(), Casa()
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


def test_a_mask_leaves_out_the_smallest_weights():
    assert all_but_smallest(vector(0.1, -0.5, 0.3, -0.2), 0.5).tolist() == [False, True, True, False]
    assert all_but_smallest(torch.zeros(10), 0.39).sum() == 7


def test_the_share_left_out_is_that_of_the_paper():
    strategy = CasaPlus(sparsity=0.6)
    begun(strategy, torch.zeros(4))
    assert strategy.share_left_out(0.4, 0.1) == 0.0  # nothing planned
    strategy.setting = strategy.setting.__class__(**{**vars(strategy.setting), "planned_updates": 100})
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
    strategy.setting = strategy.setting.__class__(**{**vars(strategy.setting), "planned_updates": 100})
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


def test_a_basic_decay_with_which_alpha_could_exceed_one_is_refused():
    with pytest.raises(Exception, match="alpha0"):
        make_strategy("casa", {"alpha0": 2.1})


def test_a_masked_mix_leaves_the_version_that_was_handed_out_alone():
    branch = Branch(torch.zeros(3))
    before: Tensor = branch.weights
    branch.mix(torch.ones(3), 0.5, torch.tensor([True, False, True]))
    assert before.tolist() == [0, 0, 0]
    assert branch.weights.tolist() == [0.5, 0, 0.5]
    assert branch.version == 1
