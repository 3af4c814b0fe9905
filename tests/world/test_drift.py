"""Drift: a client's data change when they should, as they should, and test rows never reach training."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from polytempo.core.errors import UserError
from polytempo.world.dataset import Dataset
from polytempo.world.drift import Drift
from polytempo.world.federation import Federation
from polytempo.world.partitions import make_federation


def federation(*drifts: dict[str, Any], partition: str = "groups", clients: int = 10, seed: int = 0) -> Federation:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 1, 4, 4)).astype(np.float32)
    dataset = Dataset("toy", x, rng.permutation(np.arange(600) % 10), 10, 480)
    return make_federation(dataset, partition, clients, seed, drifts=[Drift.model_validate(d) for d in drifts])


def test_without_drift_nothing_ever_happens() -> None:
    still = federation()
    assert still.drift_times() == []
    assert still.drifts_after_update(0, 5) == 0
    with pytest.raises(ValueError, match="no generation 1"):
        still.client(0, 1)


def test_drifts_at_times_are_listed_in_order_with_their_clients() -> None:
    moving = federation(
        {"kind": "swap", "labels": [[0, 1]], "at": [20.0, 5.0], "clients": [3, 1]},
        {"kind": "mixture", "at": 10.0, "clients": "all"},
        {"kind": "mixture", "at": 15.0, "clients": 0.3},
    )
    times = moving.drift_times()
    assert [time for time, _ in times] == [5.0, 10.0, 15.0, 20.0]
    assert [len(clients) for _, clients in times] == [2, 10, 3, 2]
    assert times[0][1] == times[3][1] == [1, 3]


def test_drifts_after_updates_hit_exactly_then() -> None:
    moving = federation(
        {"kind": "swap", "labels": [[0, 1]], "after": 3, "clients": [0]},
        {"kind": "mixture", "after": 2, "every": 2},
        {"kind": "mixture", "after": 4, "clients": [0, 1]},
    )
    assert [moving.drifts_after_update(0, done) for done in range(1, 9)] == [0, 1, 1, 2, 0, 1, 0, 1]
    assert [moving.drifts_after_update(5, done) for done in range(1, 9)] == [0, 1, 0, 1, 0, 1, 0, 1]
    assert moving.drift_times() == []


def test_a_swap_exchanges_the_labels_of_its_clients_and_a_second_one_restores_them() -> None:
    moving = federation({"kind": "swap", "labels": [[0, 1], [4, 7]], "at": [5.0, 9.0], "clients": [2]})
    before, swapped, restored = (moving.client(2, generation) for generation in range(3))
    exchange = np.array([1, 0, 2, 3, 7, 5, 6, 4, 8, 9])
    assert np.array_equal(swapped.y, exchange[before.y])
    assert np.array_equal(restored.y, before.y)
    assert np.array_equal(swapped.train, before.train)
    assert np.array_equal(moving.dataset.y, before.y)


def test_swaps_apply_in_the_order_in_which_they_happen() -> None:
    moving = federation(
        {"kind": "swap", "labels": [[1, 2]], "at": 9.0},
        {"kind": "swap", "labels": [[0, 1]], "at": 5.0},
    )
    assert np.array_equal(moving.client(0, 2).y, np.array([2, 0, 1, 3, 4, 5, 6, 7, 8, 9])[moving.dataset.y])


def test_clients_with_the_same_swaps_share_one_array_of_labels() -> None:
    moving = federation({"kind": "swap", "labels": [[0, 1]], "after": 1})
    assert moving.client(0, 1).y is moving.client(7, 1).y


def test_a_mixture_drift_gives_every_client_the_labels_of_another_group() -> None:
    moving = federation({"kind": "mixture", "after": 1, "every": 1}, partition="groups:5")
    assert moving.groups is not None
    for client in range(10):
        groups = [moving.group(client, generation) for generation in range(6)]
        assert groups[0] == moving.groups[client]
        assert all(one != other for one, other in itertools.pairwise(groups))
        data = moving.client(client, 1)
        assert set(data.y[data.train]) <= {2 * groups[1], 2 * groups[1] + 1}
        assert moving.samples(client, 1) == len(data.train)


def test_clients_that_drift_together_hold_no_row_twice() -> None:
    moving = federation({"kind": "mixture", "at": [1.0, 2.0], "clients": 0.6}, partition="dirichlet:0.5")
    affected = set(moving.drift_times()[0][1])
    for generation in (1, 2):
        data = [moving.client(client, generation if client in affected else 0) for client in range(10)]
        rows = np.concatenate([np.concatenate(d[:2]) for d in data])
        assert len(np.unique(rows)) == len(rows) == 600


@pytest.mark.parametrize("partition", ["groups", "dirichlet:0.3", "labels:2", "rotations:3"])
@settings(max_examples=10)
@given(seed=st.integers(0, 1000), generations=st.lists(st.integers(0, 12), min_size=10, max_size=10))
def test_no_client_ever_trains_on_a_row_that_any_client_is_tested_on(
    partition: str, seed: int, generations: list[int]
) -> None:
    moving = federation({"kind": "mixture", "after": 1, "every": 1}, partition=partition, seed=seed)
    data = [moving.client(client, generation) for client, generation in enumerate(generations)]
    trained = np.concatenate([d.train for d in data])
    tested = np.concatenate([d.test for d in data] + [moving.test_idx])
    assert not np.isin(trained, tested).any()


def test_a_rotation_client_draws_a_new_mixture_and_new_rows_from_the_pools() -> None:
    drift = {"kind": "mixture", "after": 1, "every": 1}
    moving, again = (federation(drift, partition="rotations:4") for _ in range(2))
    mixtures = [moving.mixture(3, generation) for generation in range(20)]
    assert {int(m.argmax()) for m in mixtures if m is not None} == {0, 1, 2, 3}
    for generation, mixture in enumerate(mixtures):
        assert mixture is not None
        assert 0.4 <= mixture.max() <= 0.9
        train, test, *_ = moving.client(3, generation)
        share = np.bincount(train // 480, minlength=4) / len(train)
        assert np.abs(share - mixture).max() <= 1 / len(train)
        assert np.array_equal(train, again.client(3, generation).train)
        assert np.array_equal(test, again.client(3, generation).test)
        assert moving.group(3, generation) == mixture.argmax()
    assert not np.array_equal(moving.client(3, 1).train, moving.client(3, 2).train)


def test_a_swap_between_two_mixture_drifts_keeps_the_rows() -> None:
    moving = federation(
        {"kind": "mixture", "at": [1.0, 3.0]},
        {"kind": "swap", "labels": [[0, 1]], "at": 2.0},
        partition="rotations:2",
    )
    rows = [moving.client(0, generation).train for generation in range(4)]
    assert np.array_equal(rows[1], rows[2])
    assert not np.array_equal(rows[2], rows[3])


def test_a_client_with_drifts_of_both_kinds_of_moment_is_refused() -> None:
    swap = {"kind": "swap", "labels": [[0, 1]]}
    with pytest.raises(UserError, match="Client 2 has drifts at given times and drifts after given updates"):
        federation(swap | {"at": 5.0, "clients": [1, 2]}, swap | {"after": 5, "clients": [2, 3]})
    mixed = federation(swap | {"at": 5.0, "clients": [1]}, swap | {"after": 5, "clients": [2]})
    assert mixed.drift_times() == [(5.0, [1])]
    assert mixed.drifts_after_update(2, 5) == 1


@pytest.mark.parametrize(
    ("drift", "message"),
    [
        ({"kind": "swap", "labels": [[0, 10]], "at": 1.0}, "no label 10. Labels are numbered 0 to 9"),
        ({"kind": "mixture", "at": 1.0, "clients": [4]}, "Let at least two clients drift"),
        ({"kind": "mixture", "at": 1.0, "clients": [11]}, "there is no client 11"),
        ({"kind": "mixture", "at": 1.0, "clients": 1.5}, "Expected more than 0, at most 1"),
    ],
)
def test_a_drift_that_does_not_fit_the_federation_is_refused(drift: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        federation(drift)


@pytest.mark.parametrize(
    ("drift", "message"),
    [
        ({"kind": "mixture"}, "needs either at"),
        ({"kind": "mixture", "at": 1.0, "after": 1}, "needs either at"),
        ({"kind": "mixture", "at": 1.0, "every": 2}, "list the times"),
        ({"kind": "mixture", "at": [1.0, -2.0]}, "finite and not negative"),
        ({"kind": "swap", "at": 1.0}, "needs pairs of labels"),
        ({"kind": "mixture", "at": 1.0, "labels": [[0, 1]]}, "takes none"),
        ({"kind": "rotate", "at": 1.0}, "'swap' or 'mixture'"),
    ],
)
def test_a_drift_that_makes_no_sense_is_refused(drift: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Drift.model_validate(drift)
