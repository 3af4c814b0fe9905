"""What clustered methods are made of: cosines of groups of vectors, and sums that are kept up with every event."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polytempo.strategies.parts.cosines import cosines, cosines_by_client, mean_cosine, nearest, unit_sum
from polytempo.strategies.parts.latest import Latest
from support.building import vector


def test_cosines_are_those_of_the_definition():
    found = cosines([vector(1, 0), vector(2, 2), vector(-3, 0), vector(0, 0)])
    half = 0.5**0.5
    expected = [[1, half, -1, 0], [half, 1, -half, 0], [-1, -half, 1, 0], [0, 0, 0, 1]]
    assert np.allclose(found, expected)


def test_cosines_are_symmetric_and_do_not_depend_on_the_blocks(monkeypatch):
    vectors = list(torch.randn(9, 5000, generator=torch.Generator().manual_seed(0)))
    whole = cosines(vectors)
    monkeypatch.setattr("polytempo.strategies.parts.cosines.COORDINATES", 7)
    assert np.array_equal(whole, whole.T)
    assert np.allclose(cosines(vectors), whole, atol=1e-6)
    assert whole[2, 5] == pytest.approx(torch.cosine_similarity(vectors[2], vectors[5], dim=0).item(), abs=1e-6)


def test_the_mean_cosine_of_all_pairs_follows_from_the_sum_of_unit_vectors():
    vectors = list(torch.randn(6, 5, generator=torch.Generator().manual_seed(1)))
    pairs = cosines(vectors)[np.triu_indices(6, 1)]
    assert mean_cosine(unit_sum(vectors), 6) == pytest.approx(pairs.mean())


def test_cosines_by_client_are_nan_for_clients_without_a_vector():
    found = cosines_by_client({2: vector(1, 0), 0: vector(0, 1)})
    assert found.shape == (3, 3)
    assert np.isnan(found[1]).all()
    assert found[0, 2] == 0
    assert cosines_by_client({}) is None


def test_the_nearest_direction_is_the_one_with_the_highest_cosine_however_short():
    assert nearest(vector(3, 3), {4: vector(100, 0), 7: vector(0.1, 0.1), 9: vector(0, 0)}, otherwise=1) == 7
    assert nearest(vector(3, 3), {9: vector(0, 0)}, otherwise=1) == 1


moves = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 5), st.integers(0, 2), st.lists(st.floats(-9, 9, width=32), min_size=2)),
    st.tuples(st.just("forget"), st.integers(0, 5), st.just(0), st.just([])),
    st.tuples(st.just("split"), st.integers(0, 2), st.just(0), st.just([])),
)


@given(st.lists(moves, max_size=40))
def test_running_sums_equal_fresh_sums(done):
    latest, new = Latest(), 10
    for what, number, cluster, numbers in done:
        if what == "put":
            latest.put(number, cluster, vector(*numbers[:2]), float(number + 1), 0.0)
        elif what == "forget":
            latest.forget(number)
        elif number in latest.sums:
            theirs = [client for client, where in latest.counted.items() if where == number]
            latest.split(number, {new: theirs[::2], new + 1: theirs[1::2]})
            new += 2
    assert latest.sums.keys() == set(latest.counted.values())
    for cluster, total in latest.sums.items():
        theirs = [client for client, where in latest.counted.items() if where == cluster]
        fresh = sum(((client + 1) * latest.vectors[client].double() for client in theirs), torch.zeros(2).double())
        assert torch.allclose(total, fresh, atol=1e-9)
