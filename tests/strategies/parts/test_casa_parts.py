"""What CASA is made of: decay, spectral clustering, similarity, buffers, clusters, masks; against numbers worked out by
hand and against properties that always hold."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from contract.reference import casa_splits as reference
from polytempo.core.branch import Branch
from polytempo.strategies.methods.casa_plus import all_but_smallest
from polytempo.strategies.parts.buffers import Buffers, Fingerprint, within_budget
from polytempo.strategies.parts.clusters import Clusters
from polytempo.strategies.parts.decay import bi_level, omega
from polytempo.strategies.parts.similarity import Similarity, affinity, coverage
from polytempo.strategies.parts.spectral import DENSE, eigengap, spectral_parts
from polytempo.testing import vector

NAN = math.nan


# Decay.


def test_the_decay_of_a_hundred_clients_begins_at_three_tenths():
    decay = bi_level(t=1, members=100, alpha0=2.0, kappa=0.001)
    assert decay.cluster == pytest.approx(0.299101, abs=1e-6)  # 2 x 0.99997038 / log2(103)
    assert decay.stale_after == pytest.approx(100.002962, abs=1e-6)  # 100 (2 - 0.99997038)


def test_the_decay_falls_with_time():
    assert omega(1000, 0.001) == pytest.approx(math.e / 2.8)
    assert omega(50_000, 0.001) == pytest.approx(0.227417, abs=1e-6)
    decay = bi_level(t=50_000, members=5, alpha0=2.0, kappa=0.001)
    assert decay.cluster == pytest.approx(2 * 0.227417 / 3, abs=1e-6)
    assert decay.stale_after == pytest.approx(5 * (2 - 0.227417), abs=1e-5)


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


@given(st.integers(3, 14), st.integers(0, 10**6))
def test_the_eigengap_is_that_of_the_papers_algorithm(size, seed):
    graph = np.random.default_rng(seed).uniform(0, 1, (size, size)) ** 3
    graph = (graph + graph.T) / 2
    np.fill_diagonal(graph, 1)
    parts, gap = reference.parts_and_eigengap(graph)
    assert eigengap(graph) == (parts, pytest.approx(gap))


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


def compared(memory: float, *comparisons: tuple[float, float]) -> float:
    """What is known of two clients after cosines with these weights."""
    similar = Similarity()
    similar.make_room(2)
    for value, weight in comparisons:
        similar.compare(1, [0], [value], [weight], memory)
    return float(similar.values[0, 1])


@pytest.mark.parametrize(
    ("memory", "expected"),
    [(1.0, (4 * 0.8 - 0.4) / 5), (0.5, (2 * 0.8 - 0.4) / 3), (0.0, -0.4)],
)
def test_a_cosine_counts_as_much_as_the_two_had_moved(memory, expected):
    assert compared(memory, (0.8, 4.0), (-0.4, 1.0)) == pytest.approx(expected)


def test_a_pair_that_did_not_move_says_nothing():
    assert compared(1.0, (0.8, 4.0), (0.0, 0.0)) == pytest.approx(0.8)
    assert compared(1.0, (0.0, 0.0)) == 0.0
    assert compared(1.0, (0.0, 0.0), (0.8, 4.0)) == pytest.approx(0.8)


@pytest.mark.parametrize("memory", [0.0, 1.0])
def test_a_pair_that_moved_too_far_for_a_number_is_not_compared(memory):
    assert math.isnan(compared(memory, (0.8, math.inf)))
    assert compared(memory, (0.8, 4.0), (-0.4, 1e38)) == pytest.approx(0.8)


def test_similarities_of_before_comparisons_had_weights_are_read_and_go_on():
    old = Similarity.load_state({"values": np.eye(2, dtype=np.float32)})
    old.compare(0, [1], [0.5], [2.0], 1.0)
    assert old.values[0, 1] == old.values[1, 0] == 0.5


def test_a_forgotten_client_is_compared_anew():
    similar = Similarity()
    similar.make_room(2)
    similar.compare(0, [1], [0.8], [4.0], 1.0)
    similar.forget(0)
    assert np.isnan(similar.values[0, 1])
    similar.compare(1, [0], [-0.4], [1.0], 1.0)
    assert similar.values[0, 1] == pytest.approx(-0.4)


COSINES = st.tuples(st.floats(-1, 1), st.floats(0, 100))


@given(st.lists(COSINES, min_size=1))
def test_without_memory_the_last_cosine_is_kept_to_the_bit(comparisons):
    assert compared(0.0, *comparisons) == np.float32(comparisons[-1][0])


@given(st.lists(COSINES, min_size=1), st.floats(0, 1))
def test_with_memory_an_entry_stays_between_the_cosines(comparisons, memory):
    values = [value for value, _ in comparisons]
    assert min(values) - 1e-5 <= compared(memory, *comparisons) <= max(values) + 1e-5


PEOPLE = st.lists(st.integers(0, 9), unique=True)


@given(st.lists(st.tuples(st.integers(0, 9), PEOPLE, COSINES), max_size=20), st.floats(0, 1))
def test_the_similarity_stays_symmetric(comparisons, memory):
    similar = Similarity()
    for client, others, (value, weight) in comparisons:
        similar.make_room(1 + max([client, *others]))
        others = [other for other in others if other != client]
        similar.compare(client, others, [value] * len(others), [weight] * len(others), memory)
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
        fingerprint = Fingerprint.of(sender, torch.randn(3), samples=1)
        made.append(fingerprint.vector)
        buffers.take(sender)
        buffers.offer(fingerprint, np.array([owner for owner in owners if owner != sender], np.int64))
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


# Masks.


def test_a_mask_leaves_out_the_smallest_weights():
    assert all_but_smallest(vector(0.1, -0.5, 0.3, -0.2), 0.5).tolist() == [False, True, True, False]
    assert all_but_smallest(torch.zeros(10), 0.39).sum() == 7


def test_a_masked_mix_leaves_the_version_that_was_handed_out_alone():
    branch = Branch(torch.zeros(3))
    before = branch.weights
    branch.mix(torch.ones(3), 0.5, torch.tensor([True, False, True]))
    assert before.tolist() == [0, 0, 0]
    assert branch.weights.tolist() == [0.5, 0, 0.5]
    assert branch.version == 1
