"""Partitions give every row out at most once, keep train and test apart, and have the properties that they state."""

import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polytempo.core.errors import UserError
from polytempo.world.dataset import Dataset
from polytempo.world.federation import Federation
from polytempo.world.partitions import clients_in, make_federation, natural_clients, partitions
from polytempo.world.partitions.rotations import rotated

DEALS = ["iid", "dirichlet:0.1", "labels:2", "groups", "groups:2", "class", "class:2-4", "dual-dirichlet", "natural"]


def toy(rows: int = 1200, classes: int = 10, side: int = 4) -> Dataset:
    rng = np.random.default_rng(rows + classes)
    x = rng.normal(size=(rows, 1, side, side)).astype(np.float32)
    return Dataset("toy", x, rng.permutation(np.arange(rows) % classes), classes, rows * 4 // 5, np.arange(rows) % 25)


def label_counts(federation: Federation) -> np.ndarray:
    counts = np.zeros((len(federation), federation.dataset.classes), int)
    for client in range(len(federation)):
        data = federation.client(client)
        np.add.at(counts[client], data.y[np.concatenate([data.train, data.test])], 1)
    return counts


@pytest.mark.parametrize("spec", DEALS)
@settings(max_examples=10)
@given(clients=st.integers(5, 20), seed=st.integers(0, 2**32), test_share=st.floats(0.01, 0.99))
def test_every_row_is_given_out_at_most_once_and_each_client_can_train_and_test(
    spec: str, clients: int, seed: int, test_share: float
) -> None:
    federation = make_federation(toy(), spec, clients, seed, test_share)
    given_out = np.concatenate([federation.train_idx, federation.test_idx])
    assert len(np.unique(given_out)) == len(given_out)
    assert given_out.min() >= 0
    assert given_out.max() < 1200
    assert len(federation) == clients
    for off, idx in ((federation.train_off, federation.train_idx), (federation.test_off, federation.test_idx)):
        assert np.diff(off).min() >= 1
        assert off[0] == 0
        assert off[-1] == len(idx)


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.1", "groups", "class", "dual-dirichlet"])
def test_all_rows_of_the_train_and_the_test_part_are_given_out(spec: str) -> None:
    federation = make_federation(toy(), spec, 20, seed=1)
    assert len(federation.train_idx) + len(federation.test_idx) == 1200


@pytest.mark.parametrize("spec", [*DEALS, "rotations:3"])
def test_a_partition_is_a_function_of_its_seed(spec: str) -> None:
    one, same, other = (make_federation(toy(), spec, 10, seed) for seed in (3, 3, 4))
    assert np.array_equal(one.train_idx, same.train_idx)
    assert np.array_equal(one.test_idx, same.test_idx)
    assert not np.array_equal(one.train_idx, other.train_idx)


def test_the_local_split_keeps_the_share_of_test_samples_of_each_client() -> None:
    federation = make_federation(toy(), "dirichlet:1", 10, seed=0, test_share=0.25)
    train, test = np.diff(federation.train_off), np.diff(federation.test_off)
    assert np.all(np.abs(test - 0.25 * (train + test)) <= 0.5)


def test_iid_clients_differ_by_at_most_one_sample() -> None:
    assert np.ptp(label_counts(make_federation(toy(1203), "iid", 20, seed=0)).sum(axis=1)) == 1


def test_a_small_dirichlet_parameter_makes_clients_less_alike() -> None:
    largest_share = []
    for alpha in (0.05, 1, 100):
        counts = label_counts(make_federation(toy(), f"dirichlet:{alpha}", 20, seed=0))
        largest_share.append((counts.max(axis=1) / counts.sum(axis=1)).mean())
    assert largest_share[0] > 0.6 > largest_share[1] > 0.2 > largest_share[2]


@pytest.mark.parametrize("spec", ["dirichlet:0.01", "groups", "dual-dirichlet:0.1"])
def test_clients_that_drew_too_few_samples_are_fed_up_to_the_minimum(spec: str) -> None:
    counts = label_counts(make_federation(toy(), spec, 100, seed=0, min_samples=8))
    assert counts.sum(axis=1).min() >= 8


@settings(max_examples=30)
@given(clients=st.integers(1, 30), per_client=st.integers(1, 10), seed=st.integers(0, 1000))
def test_every_client_holds_exactly_c_labels_and_labels_are_held_equally_often(
    clients: int, per_client: int, seed: int
) -> None:
    counts = label_counts(make_federation(toy(), f"labels:{per_client}", clients, seed))
    assert np.all((counts > 0).sum(axis=1) == per_client)
    holders = (counts > 0).sum(axis=0)
    assert np.ptp(holders) <= 1
    for label in np.flatnonzero(holders):
        assert counts[:, label].sum() == 120
        assert np.ptp(counts[counts[:, label] > 0, label]) <= 1


def test_groups_divide_clients_and_labels_in_the_shares_of_the_paper() -> None:
    federation = make_federation(toy(), "groups", 20, seed=0)
    assert federation.groups is not None
    assert np.bincount(federation.groups).tolist() == [4, 4, 6, 6]
    counts = label_counts(federation)
    labels_of = [np.flatnonzero(counts[federation.groups == group].sum(axis=0)).tolist() for group in range(4)]
    assert labels_of == [[0, 1], [2, 3], [4, 5, 6], [7, 8, 9]]


@pytest.mark.parametrize(("labels", "clients", "sizes"), [(2, 6, [3, 3]), (10, 3, [1, 1, 1]), (1, 4, [4])])
def test_few_labels_or_clients_make_as_many_equal_groups(labels: int, clients: int, sizes: list[int]) -> None:
    federation = make_federation(toy(60 * labels, labels), "groups", clients, seed=0)
    assert federation.groups is not None
    assert np.bincount(federation.groups).tolist() == sizes


@settings(max_examples=20)
@given(groups=st.integers(1, 10), seed=st.integers(0, 1000))
def test_groups_never_have_a_label_in_common(groups: int, seed: int) -> None:
    federation = make_federation(toy(600), f"groups:{groups}", 60, seed, min_samples=5)
    held_by = [label_counts(federation)[federation.groups == group].sum(axis=0) > 0 for group in range(groups)]
    assert np.all(np.sum(held_by, axis=0) == 1)


@pytest.mark.parametrize(("clients", "fewest", "most"), [(5, 5, 6), (10, 3, 5), (20, 3, 5)])
def test_the_class_partition_has_the_class_counts_of_the_paper_and_covers_every_class(
    clients: int, fewest: int, most: int
) -> None:
    for seed in range(10):
        held = label_counts(make_federation(toy(), "class", clients, seed)) > 0
        assert held.sum(axis=1).min() >= fewest
        assert held.sum(axis=1).max() <= most
        assert held.any(axis=0).all()


def test_a_class_is_shared_out_in_normal_shares() -> None:
    counts = label_counts(make_federation(toy(20_000, classes=2), "class:2-2", 100, seed=0))
    relative = counts / counts.mean(axis=0)
    assert relative.std() == pytest.approx(0.3, abs=0.05)


def test_dual_dirichlet_spreads_sizes_by_the_one_and_labels_by_the_other_parameter() -> None:
    def spread(spec: str) -> tuple[float, float]:
        counts = label_counts(make_federation(toy(12_000), spec, 20, seed=0))
        sizes = counts.sum(axis=1)
        return sizes.std() / sizes.mean(), (counts.max(axis=1) / sizes).mean()

    even_sizes, even_labels = spread("dual-dirichlet:10000,10000")
    few_sizes, few_labels = spread("dual-dirichlet:0.5,20")
    uneven_sizes, _ = spread("dual-dirichlet:10000,20")
    assert even_sizes < 0.1
    assert even_labels < 0.15
    assert uneven_sizes > 0.4
    assert few_sizes > 0.4
    assert few_labels > 0.5


def test_rotations_hold_every_image_under_every_angle() -> None:
    source = toy(40)
    federation = make_federation(source, "rotations:4", 4, seed=0)
    x, y = federation.dataset.x, federation.dataset.y
    train = federation.dataset.train_size // 4
    for turns in range(4):
        assert np.array_equal(x[turns * train : (turns + 1) * train], np.rot90(x[:train], turns, axes=(2, 3)))
        assert np.array_equal(y[turns * train : (turns + 1) * train], y[:train])
    upright = np.concatenate([x[:train], x[4 * train : 4 * train + 8]])
    assert sorted(map(bytes, upright)) == sorted(map(bytes, source.x))


def test_other_angles_turn_the_same_way_as_quarter_turns() -> None:
    image = np.zeros((1, 1, 9, 9), np.float32)
    image[0, 0, 4, 8] = 1  # east
    assert np.unravel_index(rotated(image, 45)[0, 0, :4].argmax(), (4, 9))[1] > 4  # north-east
    assert rotated(image, 90)[0, 0, 0, 4] == 1  # north


@settings(max_examples=20)
@given(clusters=st.integers(1, 6), seed=st.integers(0, 1000))
def test_a_rotation_client_draws_40_to_90_percent_from_its_dominant_cluster(clusters: int, seed: int) -> None:
    federation = make_federation(toy(800), f"rotations:{clusters}", 2 * clusters, seed)
    assert federation.mixtures is not None
    assert federation.groups is not None
    train_images = federation.dataset.train_size // clusters
    for client in range(len(federation)):
        train, test, *_ = federation.client(client)
        share = np.bincount(train // train_images, minlength=clusters) / len(train)
        assert np.abs(share - federation.mixtures[client]).max() <= 1 / len(train)
        assert federation.groups[client] == federation.mixtures[client].argmax()
        assert clusters == 1 or 0.4 <= federation.mixtures[client].max() <= 0.9
        assert 50 <= len(train) + len(test) <= 200
        assert len(np.unique(train)) == len(train)
        assert len(np.unique(test)) == len(test)
    assert np.bincount(federation.groups, minlength=clusters).tolist() == [2] * clusters
    assert federation.train_idx.max() < federation.dataset.train_size <= federation.test_idx.min()


def test_natural_clients_are_the_first_users_with_all_their_rows() -> None:
    dataset = toy()
    federation = make_federation(dataset, "natural", 7, seed=0)
    assert natural_clients(dataset) == clients_in("natural", dataset) == 25
    for client in range(7):
        rows = np.sort(np.concatenate(federation.client(client)[:2]))
        assert np.array_equal(rows, np.flatnonzero(dataset.users == client))


def test_natural_clients_have_at_least_two_samples() -> None:
    dataset = Dataset("tiny", np.zeros((5, 1), np.float32), np.zeros(5, int), 1, 5, np.array([3, 1, 3, 3, 8]))
    assert natural_clients(dataset) == 1
    train, test, *_ = make_federation(dataset, "natural", 1, 0).client(0)
    assert sorted([*train, *test]) == [0, 2, 3]


def test_only_users_with_the_minimum_of_samples_are_counted() -> None:
    users = np.repeat([0, 1, 2], [2, 5, 9])
    dataset = Dataset("tiny", np.zeros((16, 1), np.float32), np.zeros(16, int), 1, 16, users)
    counted = [clients_in("natural", dataset, min_samples) for min_samples in (2, 5, 9)]
    assert counted == [3, 2, 1]
    assert len(make_federation(dataset, "natural", counted[1], seed=0, min_samples=5)) == 2


def write(path: Path, **changes: object) -> str:
    arrays: dict[str, object] = {"train_idx": [5, 2, 7, 8], "train_off": [0, 2, 4], "test_idx": [11, 0]}
    arrays |= {"test_off": [0, 1, 2]} | changes
    np.savez(path / "rows.npz", **{key: np.array(value) for key, value in arrays.items() if value is not None})
    return f"file:{path / 'rows.npz'}"


def test_a_file_gives_exactly_its_rows(tmp_path: Path) -> None:
    spec = write(tmp_path)
    federation = make_federation(toy(12), spec, 2, seed=0)
    assert clients_in(spec, toy(12)) == 2
    assert federation.client(1).train.tolist() == [7, 8]
    assert federation.client(1).test.tolist() == [0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_off": [0, 3, 2]}, "train_off must rise from 0"),
        ({"train_off": [0, 2, 5]}, "train_off must rise from 0 to the length of train_idx, 4"),
        ({"train_idx": [5, 2, 7, 12]}, "names row 12. The data set has rows 0 to 11"),
        ({"test_idx": [-1, 0]}, "names row -1"),
        ({"train_idx": [5, 2, 7, 5]}, "row 5 out more than once"),
        ({"test_idx": [2, 0]}, "row 2 out more than once"),
        ({"test_off": None}, "no array 'test_off'"),
        ({"test_off": [0, 0, 2]}, "client 0 no test rows"),
        ({"test_off": [0, 1, 1, 2]}, "2 clients in train_off and 3 in test_off"),
        ({"train_idx": [5.0, 2.0, 7.0, 8.0]}, "Expected a list of whole numbers"),
    ],
)
def test_a_file_with_a_mistake_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_federation(toy(12), write(tmp_path, **changes), 2, seed=0)


def test_what_is_no_npz_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.npz").write_text("rows")
    for name in ("rows.npz", "missing.npz"):
        with pytest.raises(UserError, match="Expected an npz with train_idx"):
            make_federation(toy(12), f"file:{tmp_path / name}", 2, seed=0)


@pytest.mark.parametrize(
    ("spec", "clients", "message"),
    [
        ("iid", 601, "601 clients with at least 2 samples each need 1202 samples, and toy has 1200"),
        ("iid", 0, "at least one client"),
        ("labels:11", 5, "more than the 10 labels"),
        ("labels:10", 200, "label 0 to 200 clients, and toy has 120 samples"),
        ("groups:4", 3, "3 clients in 4 groups"),
        ("groups:11", 50, "10 labels in 11 groups"),
        ("class:1-1", 5, "gives each of its 10 labels a client"),
        ("class:3-11", 5, "more than the 10 labels"),
        ("natural", 26, "26 clients were asked for, but toy has 25 users"),
        ("dirichlt:0.1", 5, "Did you mean 'dirichlet'"),
    ],
)
def test_what_cannot_be_met_is_refused_with_the_reason(spec: str, clients: int, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_federation(toy(), spec, clients, seed=0)


MALFORMED = ["iid:3", "dirichlet", "dirichlet:-1", "dirichlet:nan", "labels", "labels:0", "groups:0.5,0.6", "groups:0"]
MALFORMED += ["class:5", "class:6-5", "dual-dirichlet:a", "dual-dirichlet:1,2,3", "rotations", "rotations:0", "file"]


@pytest.mark.parametrize("spec", MALFORMED)
def test_a_malformed_parameter_is_answered_with_the_expected_form(spec: str) -> None:
    form = partitions[spec.partition(":")[0]].form
    with pytest.raises(UserError, match=f"Partition '{spec}' is not understood. Expected {form}"):
        make_federation(toy(), spec, 5, seed=0)


def test_rotations_need_square_images() -> None:
    table = Dataset("table", np.zeros((100, 7), np.float32), np.arange(100) % 2, 2, 80)
    with pytest.raises(UserError, match="turns square images"):
        make_federation(table, "rotations:4", 4, seed=0)


def test_a_minimum_of_samples_that_a_partition_cannot_meet_is_an_error() -> None:
    with pytest.raises(UserError, match="gets 40 samples, fewer than the minimum of 41"):
        make_federation(toy(), "labels:1", 25, seed=0, min_samples=41)


@pytest.mark.parametrize("spec", ["iid", "dirichlet:0.1"])
def test_a_hundred_thousand_clients_take_seconds(spec: str) -> None:
    rows = 500_000
    dataset = Dataset("large", np.zeros((rows, 1), np.float32), np.arange(rows) % 10, 10, rows)
    begin = time.process_time()  # of this process alone: a busy machine does not count
    federation = make_federation(dataset, spec, 100_000, seed=0)
    assert time.process_time() - begin < 10
    assert federation.train_off.nbytes + federation.test_off.nbytes < 2000 * 100_000
