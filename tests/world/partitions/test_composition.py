"""The partition by composition: who gets which labels in which shares."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytempo import simulate
from polytempo.core.errors import UserError
from polytempo.world.dataset import Dataset
from polytempo.world.federation import Federation
from polytempo.world.partitions import clients_in, make_federation

SCENARIO_B = "composition:0-3/0-3/0-1/0-1/0*1,1*3"


def toy(sizes: list[int]) -> Dataset:
    """So many rows of each label."""
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Dataset("toy", np.zeros((len(y), 1), np.float32), y, len(sizes), len(y))


def label_counts(federation: Federation) -> np.ndarray:
    rows = [np.concatenate([data.train, data.test]) for data in map(federation.client, range(len(federation)))]
    return np.array([np.bincount(federation.dataset.y[own], minlength=federation.dataset.classes) for own in rows])


def test_every_client_gets_its_labels_in_its_shares() -> None:
    counts = label_counts(make_federation(toy([900] * 10), SCENARIO_B, 5, seed=0))
    assert counts[:, :4].tolist() == [[100] * 4, [100] * 4, [200, 200, 0, 0], [200, 200, 0, 0], [100, 300, 0, 0]]
    assert counts[:, 4:].sum() == 0


def test_all_clients_get_as_many_samples_as_the_scarcest_label_allows() -> None:
    counts = label_counts(make_federation(toy([50, 1000, 1000]), "composition:0-1/1-2/2", 3, seed=0))
    assert counts.tolist() == [[50, 50, 0], [0, 50, 50], [0, 0, 100]]


@settings(max_examples=40)
@given(
    weights=st.lists(st.lists(st.floats(0.01, 100), min_size=3, max_size=3), min_size=1, max_size=6),
    sizes=st.lists(st.integers(50, 300), min_size=3, max_size=3),
)
def test_clients_are_equally_large_and_no_row_is_given_out_twice(weights: list[list[float]], sizes: list[int]) -> None:
    spec = "/".join(",".join(f"{label}*{weight}" for label, weight in enumerate(client)) for client in weights)
    federation = make_federation(toy(sizes), f"composition:{spec}", len(weights), seed=0)
    given_out = np.concatenate([federation.train_idx, federation.test_idx])
    assert len(np.unique(given_out)) == len(given_out)
    counts = label_counts(federation)
    assert np.ptp(counts.sum(axis=1)) == 0
    exact = np.array(weights) / np.sum(weights, axis=1, keepdims=True) * counts[0].sum()
    assert np.all(np.abs(counts - exact) < 1)


def test_clients_of_the_same_composition_are_a_true_group() -> None:
    federation = make_federation(toy([900] * 10), SCENARIO_B, 5, seed=0)
    assert federation.groups is not None
    assert federation.groups.tolist() == [0, 0, 1, 1, 2]
    other_words = make_federation(toy([90] * 3), "composition:1*2,0*4/2/0*2,1", 3, seed=0)
    assert other_words.groups is not None
    assert other_words.groups.tolist() == [0, 1, 0]


def test_one_composition_for_all_makes_no_groups() -> None:
    assert make_federation(toy([90] * 3), "composition:0-2/0-2", 2, seed=0).groups is None


def test_the_partition_says_how_many_clients_there_are() -> None:
    assert clients_in(SCENARIO_B, toy([90] * 10)) == 5
    assert simulate("fedasync", partition=SCENARIO_B, updates=5).clients() == 5


def test_who_gets_which_rows_is_drawn_from_the_seed() -> None:
    one, same, other = (make_federation(toy([90] * 4), SCENARIO_B, 5, seed) for seed in (3, 3, 4))
    assert np.array_equal(one.train_idx, same.train_idx)
    assert not np.array_equal(one.train_idx, other.train_idx)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("composition:0-3/2", "gives client 0 label 3. The labels of toy are numbered 0 to 2."),
        ("composition:0/7", "gives client 1 label 7"),
        ("composition:0/0-2,1*5", "gives client 1 label 1 twice"),
        ("composition:0/1/2", "describes 3 clients, and 2 were asked for"),
    ],
)
def test_a_composition_that_cannot_be_met_is_refused_with_the_reason(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)):
        make_federation(toy([90] * 3), spec, 2, seed=0)


def test_a_label_that_the_data_do_not_have_leaves_nothing_to_give_out() -> None:
    with pytest.raises(UserError, match="Client 0 gets 0 samples"):
        make_federation(toy([90, 0, 90]), "composition:0-1/2", 2, seed=0)


@pytest.mark.parametrize("text", ["", "0//1", "0/", "3-1/0", "a/1", "0*0/1", "0*-1/1", "0*inf/1", "0*1*2/1", "-1/1"])
def test_a_malformed_composition_is_answered_with_the_expected_form(text: str) -> None:
    with pytest.raises(UserError, match=re.escape("is not understood. Expected composition:0-3/0-1/0*1,1*3")):
        make_federation(toy([90] * 4), f"composition:{text}", 2, seed=0)
